#include "task_side/node_plan.hpp"

#include <fmt/format.h>

#include "base/byte_stream.hpp"

namespace ddp::srun_plugin {
namespace {

constexpr const char* kReadingQuestion = "reading the question about the node";

void check_plan_version(base::ByteReader& reader) {
  const auto version = reader.integer<std::uint32_t>();
  if (version == kPlanVersion) return;
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "talking to ddp-step",
               .cause = fmt::format("its version is {}, the plugin's is {}", version, kPlanVersion),
               .hint = "install the plugin and ddp-step from one package"}};
}

}  // namespace

Bytes encode(const PlanQuestion& question) {
  base::ByteWriter writer;
  writer.integer(kPlanVersion)
      .text(to_string(question.bind))
      .text(to_string(question.gpus))
      .text(question.backend)
      .text(question.node_list)
      .text(question.node_name)
      .text(question.store_address)
      .integer(question.store_port)
      .integer(question.patience_seconds)
      .integer(static_cast<std::uint32_t>(question.resources.size()));
  for (const Bytes& resources : question.resources) writer.blob(resources);
  return std::move(writer).bytes();
}

PlanQuestion decode_question(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "question about the node");
  check_plan_version(reader);
  PlanQuestion question;
  question.bind = topology::read_bind_policy(kReadingQuestion, reader.text());
  question.gpus = topology::read_gpu_visibility(kReadingQuestion, reader.text());
  question.backend = reader.text();
  question.node_list = reader.text();
  question.node_name = reader.text();
  question.store_address = reader.text();
  question.store_port = reader.integer<std::uint16_t>();
  question.patience_seconds = reader.integer<std::uint16_t>();
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
    const auto blob = reader.blob();
    question.resources.emplace_back(blob.begin(), blob.end());
  }
  reader.expect_end();
  return question;
}

Bytes encode(const NodePlan& plan) {
  base::ByteWriter writer;
  writer.integer(kPlanVersion).integer(static_cast<std::uint32_t>(plan.tasks.size()));
  for (const TaskPlan& task : plan.tasks) {
    const Binding binding = task.binding.value_or(Binding{});
    writer.text(binding.cpus.to_string())
        .integer(static_cast<std::int32_t>(binding.preferred_memory))
        .text(task.summary)
        .integer(static_cast<std::uint32_t>(task.settings.size()));
    for (const auto& [name, value] : task.settings) writer.text(name).text(value);
  }
  writer.integer(static_cast<std::uint32_t>(plan.remarks.size()));
  for (const std::string& remark : plan.remarks) writer.text(remark);
  return std::move(writer).bytes();
}

NodePlan decode_plan(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "plan of the node");
  check_plan_version(reader);
  NodePlan plan;
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
    TaskPlan task;
    Binding binding{.cpus = CpuSet::parse(reader.text()), .preferred_memory = reader.integer<std::int32_t>()};
    if (!binding.cpus.empty()) task.binding = std::move(binding);
    task.summary = reader.text();
    for (auto settings = reader.integer<std::uint32_t>(); settings > 0; --settings) {
      std::string name = reader.text();
      task.settings.emplace_back(std::move(name), reader.text());
    }
    plan.tasks.push_back(std::move(task));
  }
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) plan.remarks.push_back(reader.text());
  reader.expect_end();
  return plan;
}

}  // namespace ddp::srun_plugin
