// Names of nodes in a line: a large step has more than a reader wants.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::srun_plugin {

/// "n0, n1 and 3 more".
inline std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNamed = 8;
  const std::size_t shown = std::min(names.size(), kMostNamed);
  const std::string text =
      fmt::to_string(fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() == shown ? text : fmt::format("{} and {} more", text, names.size() - shown);
}

}  // namespace ddp::srun_plugin
