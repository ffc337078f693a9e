#include "node_plan.hpp"

#include <fmt/format.h>

#include "base/byte_stream.hpp"

namespace ddp::srun_plugin {
namespace {

void check_version(base::ByteReader& reader) {
  const auto version = reader.integer<std::uint32_t>();
  if (version == kPlanVersion) return;
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "talking to ddp-step",
               .cause = fmt::format("its version is {}, the plugin's is {}", version, kPlanVersion),
               .native = {},
               .ranks = {},
               .hint = "install the plugin and ddp-step from one package"}};
}

}  // namespace

Bytes encode(const PlanQuestion& question) {
  base::ByteWriter writer;
  writer.integer(kPlanVersion)
      .text(question.bind)
      .text(question.gpus)
      .text(question.backend)
      .text(question.node_list)
      .text(question.node_name)
      .integer(static_cast<std::uint32_t>(question.resources.size()));
  for (const Bytes& resources : question.resources) writer.blob(resources);
  return std::move(writer).bytes();
}

PlanQuestion decode_question(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "question about the node");
  check_version(reader);
  PlanQuestion question;
  question.bind = reader.text();
  question.gpus = reader.text();
  question.backend = reader.text();
  question.node_list = reader.text();
  question.node_name = reader.text();
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
    writer.text(task.cpus)
        .integer(static_cast<std::int32_t>(task.preferred_memory))
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
  check_version(reader);
  NodePlan plan;
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
    TaskPlan task;
    task.cpus = reader.text();
    task.preferred_memory = reader.integer<std::int32_t>();
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
