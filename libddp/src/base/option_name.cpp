#include "base/option_name.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/closest_word.hpp"

namespace ddp::base {

std::vector<std::string> options_meant_by(std::string_view typed, std::span<const std::string> names) {
  if (std::find(names.begin(), names.end(), typed) != names.end()) return {std::string(typed)};
  std::vector<std::string> begun;
  std::copy_if(names.begin(), names.end(), std::back_inserter(begun),
               [&](const std::string& name) { return name.starts_with(typed); });
  return begun;
}

std::string closest_option(const std::string& typed, std::span<const std::string> names) {
  const std::string whole = closest_word(typed, names, std::max<std::size_t>(typed.size() / 3, 2));
  if (!whole.empty() || typed.size() < 5) return whole;
  std::vector<std::string> beginnings;
  for (const std::string& name : names) beginnings.push_back(name.substr(0, typed.size()));
  constexpr std::size_t kDashes = 2;
  const std::string beginning = closest_word(typed, beginnings, (typed.size() - kDashes) / 2);
  if (beginning.empty()) return {};
  return *std::find_if(names.begin(), names.end(), [&](const auto& name) { return name.starts_with(beginning); });
}

}  // namespace ddp::base
