#include "reducer/parameter_check.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/byte_stream.hpp"
#include "base/fnv1a.hpp"
#include "collectives/all_gather_bytes.hpp"
#include "reducer/bucket_plan.hpp"

namespace ddp::reducer {
namespace {

constexpr std::size_t kBroadcastBytes = 25 * MiB;

std::string describe(const Parameter& parameter) {
  std::string text = fmt::format("'{}' {}", parameter.name, parameter.value.description());
  const std::string gradient = parameter.gradient.description();
  if (gradient != parameter.value.description()) text += fmt::format(" with a gradient {}", gradient);
  return text;
}

Bytes describe_all(const std::vector<Parameter>& parameters) {
  base::ByteWriter writer;
  writer.integer(static_cast<std::uint64_t>(parameters.size()));
  for (const Parameter& parameter : parameters) writer.text(describe(parameter));
  return std::move(writer).bytes();
}

std::vector<std::string> read_descriptions(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "description of a rank's parameters");
  const auto count = reader.integer<std::uint64_t>();
  std::vector<std::string> descriptions;
  for (std::uint64_t i = 0; i < count; ++i) descriptions.push_back(reader.text());
  reader.expect_end();
  return descriptions;
}

/// Ranks with equal answers, smallest rank first: "rank 0 has 'fc.weight' float32[4, 2], ranks 1, 2 have ...".
std::string group_by_answer(const ProcessGroup& group, const std::vector<std::string>& answers) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    auto found = std::find_if(groups.begin(), groups.end(), [&](auto& each) { return each.first == answers[rank]; });
    if (found == groups.end()) found = groups.insert(groups.end(), {answers[rank], {}});
    found->second.push_back(group.global_ranks()[rank]);
  }
  std::string text;
  for (const auto& [answer, ranks] : groups) {
    text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", format_ranks(ranks), ranks.size() == 1 ? "has" : "have",
                        answer);
  }
  return text;
}

[[noreturn]] void report(const ProcessGroup& group, const std::vector<std::vector<std::string>>& by_rank) {
  std::size_t longest = 0;
  for (const auto& descriptions : by_rank) longest = std::max(longest, descriptions.size());
  std::string cause = "the ranks' parameters differ";  // only if equal descriptions hash differently
  for (std::size_t i = 0; i < longest; ++i) {
    std::vector<std::string> answers;
    for (const auto& descriptions : by_rank) {
      answers.push_back(i < descriptions.size() ? descriptions[i]
                                                : fmt::format("only {} parameters", descriptions.size()));
    }
    if (std::all_of(answers.begin(), answers.end(), [&](const auto& answer) { return answer == answers[0]; })) continue;
    cause = fmt::format("parameter {} differs: {}", i, group_by_answer(group, answers));
    break;
  }
  std::vector<int> different;
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] != by_rank[0]) different.push_back(group.global_ranks()[rank]);
  }
  throw Error{{.code = ErrorCode::mismatch,
               .attempted = "checking that all ranks have the same parameters",
               .cause = std::move(cause),
               .native = {},
               .ranks = std::move(different),
               .hint = "build the same model, with its parameters in the same order, on every rank"}};
}

}  // namespace

void verify_parameters(ProcessGroup& group, const std::vector<Parameter>& parameters) {
  const Bytes own = describe_all(parameters);
  std::vector<std::int64_t> hash{static_cast<std::int64_t>(base::Fnv1a().add(own).value())};
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(group.size()));
  group.all_gather(hash, hashes).wait();
  if (std::all_of(hashes.begin(), hashes.end(), [&](std::int64_t other) { return other == hashes[0]; })) return;

  std::vector<std::vector<std::string>> by_rank;
  for (const Bytes& bytes : collectives::all_gather_bytes(group, own)) by_rank.push_back(read_descriptions(bytes));
  report(group, by_rank);
}

void broadcast_parameters(ProcessGroup& group, const std::vector<Parameter>& parameters) {
  if (group.size() == 1) return;
  std::vector<TensorInfo> tensors;
  for (const Parameter& parameter : parameters) {
    tensors.push_back({parameter.value.size_bytes(), parameter.value.dtype(), parameter.value.device()});
  }
  const std::size_t limit = kBroadcastBytes;
  for (const auto& indices : assign_buckets(tensors, {&limit, 1})) {
    std::size_t bytes = 0;
    for (const std::size_t index : indices) bytes += tensors[index].size_bytes;
    std::vector<std::uint8_t> buffer(bytes);
    const auto each = [&](auto&& copy) {
      std::size_t offset = 0;
      for (const std::size_t index : indices) {
        if (tensors[index].size_bytes > 0) {
          copy(buffer.data() + offset, parameters[index].value.data(), tensors[index].size_bytes);
        }
        offset += tensors[index].size_bytes;
      }
    };
    if (group.rank() == 0) each([](void* packed, void* value, std::size_t n) { std::memcpy(packed, value, n); });
    group.broadcast(buffer, 0).wait();
    if (group.rank() != 0) each([](void* packed, void* value, std::size_t n) { std::memcpy(value, packed, n); });
  }
}

}  // namespace ddp::reducer
