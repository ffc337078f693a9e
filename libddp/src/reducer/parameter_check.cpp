#include "reducer/parameter_check.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/byte_stream.hpp"
#include "base/fnv1a.hpp"
#include "collectives/all_gather_bytes.hpp"
#include "reducer/answers.hpp"

namespace ddp::reducer {
namespace {

std::string describe(const Parameter& parameter) {
  std::string text = fmt::format("'{}' {}", parameter.name, parameter.value.description());
  const std::string gradient = parameter.gradient.description();
  if (!parameter.requires_gradient) {
    text += " without a gradient";
  } else if (parameter.sparse_gradient) {
    text += " with a sparse gradient";
  } else if (parameter.gradient.data() != nullptr && gradient != parameter.value.description()) {
    text += fmt::format(" with a gradient {}", gradient);
  }
  if (parameter.value.device().type == DeviceType::cuda) text += " on a CUDA device";
  if (!parameter.strides.empty()) text += fmt::format(" with strides [{}]", fmt::join(parameter.strides, ", "));
  return text;
}

Bytes describe_all(const std::vector<Parameter>& parameters, const std::string& options) {
  base::ByteWriter writer;
  writer.text(options);
  writer.integer(static_cast<std::uint64_t>(parameters.size()));
  std::map<const void*, std::string> names;  // of shared parameters the first
  for (const Parameter& parameter : parameters) {
    std::string text = describe(parameter);
    if (parameter.requires_gradient && parameter.value.data() != nullptr && parameter.value.numel() > 0) {
      const auto [first, is_new] = names.try_emplace(parameter.value.data(), parameter.name);
      if (!is_new) text += fmt::format(" shared with '{}'", first->second);
    }
    writer.text(text);
  }
  return std::move(writer).bytes();
}

/// Of the options, then of each parameter.
std::vector<std::string> read_descriptions(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "description of a rank's parameters");
  std::vector<std::string> descriptions{reader.text()};
  const auto count = reader.integer<std::uint64_t>();
  for (std::uint64_t i = 0; i < count; ++i) descriptions.push_back(reader.text());
  reader.expect_end();
  return descriptions;
}

/// "rank 0 has 'fc.weight' float32[4, 2], ranks 1, 2 have ...".
std::string who_has_what(const ProcessGroup& group, const std::vector<std::string>& answers) {
  std::string text;
  for (const auto& [answer, ranks] : group_answers(group, answers)) {
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
                                                : fmt::format("only {} parameters", descriptions.size() - 1));
    }
    if (std::all_of(answers.begin(), answers.end(), [&](const auto& answer) { return answer == answers[0]; })) continue;
    cause = i == 0 ? "the options differ: " : fmt::format("parameter {} differs: ", i - 1);
    cause += who_has_what(group, answers);
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

void verify_parameters(ProcessGroup& group, const std::vector<Parameter>& parameters, const std::string& options) {
  const Bytes own = describe_all(parameters, options);
  std::vector<std::int64_t> hash{static_cast<std::int64_t>(base::Fnv1a().add(own).value())};
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(group.size()));
  group.all_gather(hash, hashes).wait();
  if (std::all_of(hashes.begin(), hashes.end(), [&](std::int64_t other) { return other == hashes[0]; })) return;

  std::vector<std::vector<std::string>> by_rank;
  for (const Bytes& bytes : collectives::all_gather_bytes(group, own)) by_rank.push_back(read_descriptions(bytes));
  report(group, by_rank);
}

}  // namespace ddp::reducer
