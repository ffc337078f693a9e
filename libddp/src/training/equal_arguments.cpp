#include "training/equal_arguments.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

namespace ddp::training {
namespace {

struct Argument {
  const char* name;
  std::string (*text)(std::int64_t);
};

std::string number(std::int64_t value) { return std::to_string(value); }
std::string truth(std::int64_t value) { return value != 0 ? "true" : "false"; }
std::string remainder_word(std::int64_t value) {
  switch (static_cast<Remainder>(value)) {
    case Remainder::pad: return "pad";
    case Remainder::drop: return "drop";
    case Remainder::uneven: return "uneven";
  }
  return "unknown";
}

}  // namespace

std::int64_t equal_arguments(const char* attempted, const ProcessGroup& group, std::int64_t dataset_size,
                             const SamplerOptions& options) {
  static constexpr Argument kArguments[] = {{"numbers of samples", &number},
                                            {"seeds", &number},
                                            {"values of shuffle", &truth},
                                            {"remainders", &remainder_word}};
  struct Exchange {
    std::vector<std::int64_t> own, all;
  };
  const auto exchange = std::make_shared<Exchange>();
  exchange->own = {dataset_size, options.seed, options.shuffle ? 1 : 0, static_cast<std::int64_t>(options.remainder)};
  exchange->all.resize(exchange->own.size() * static_cast<std::size_t>(group.size()));
  ProcessGroup members = group;
  members.all_gather(exchange->own, exchange->all, {{}, exchange}).wait_watched();

  for (std::size_t i = 0; i < exchange->own.size(); ++i) {
    std::map<std::int64_t, std::vector<int>> ranks;  // by value
    std::vector<int> others;
    for (std::size_t at = i; at < exchange->all.size(); at += exchange->own.size()) {
      const int rank = group.global_ranks()[at / exchange->own.size()];
      ranks[exchange->all[at]].push_back(rank);
      if (exchange->all[at] != exchange->all[i]) others.push_back(rank);
    }
    if (ranks.size() == 1) continue;
    std::vector<std::string> values;
    for (const auto& [value, having] : ranks) {
      values.push_back(fmt::format("{} on {}", kArguments[i].text(value), format_ranks(having)));
    }
    throw Error{
        {.code = ErrorCode::mismatch,
         .attempted = attempted,
         .cause = fmt::format("ranks of the group give different {}: {}", kArguments[i].name, fmt::join(values, "; ")),
         .ranks = std::move(others),
         .hint = "give the same on all ranks: else samples come twice, or never"}};
  }
  return dataset_size;
}

}  // namespace ddp::training
