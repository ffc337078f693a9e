// torchrun's grammar for numbers of nodes and of ranks, with limits.
#include "options/job_size.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "base/closest_word.hpp"
#include "options/option_values.hpp"

namespace ddp::launcher {

NodeRange parse_node_range(const std::string& option, const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) {
    const int nodes = parse_count(option, text, kMaxNodes);
    return {.min = nodes, .max = nodes};
  }
  if (text.find(':', colon + 1) != std::string::npos)
    reject_value(option, text, "has more than one colon", "give N or MIN:MAX");
  const NodeRange range{.min = parse_count(option, text.substr(0, colon), kMaxNodes),
                        .max = parse_count(option, text.substr(colon + 1), kMaxNodes)};
  if (range.min > range.max)
    reject_value(option, text, "has a minimum above its maximum",
                 fmt::format("did you mean {}:{}?", range.max, range.min));
  return range;
}

RanksPerNode parse_ranks_per_node(const std::string& option, const std::string& text) {
  using Kind = RanksPerNode::Kind;
  if (text == "cpu") return {.kind = Kind::cpus, .number = 1};
  if (text == "gpu" || text == "xpu") return {.kind = Kind::gpus, .number = 1};
  if (text == "auto") return {.kind = Kind::automatic, .number = 1};
  const bool word = !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0;
  if (!word) return {.kind = Kind::number, .number = parse_count(option, text, kMaxRanksPerNode)};
  const std::array<std::string, 3> words{"cpu", "gpu", "auto"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string closest = base::closest_word(lower, words, 2);
  reject_value(option, text, fmt::format("is neither a number from 1 to {} nor cpu, gpu or auto", kMaxRanksPerNode),
               closest.empty() ? "give one of these" : fmt::format("did you mean '{}'?", closest));
}

}  // namespace ddp::launcher
