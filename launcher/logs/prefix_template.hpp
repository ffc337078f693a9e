// Fills the template of a console line's prefix.
#pragma once

#include <string>
#include <string_view>

namespace ddp::launcher {

/// torchrun's prefix where no template is given.
inline constexpr std::string_view kDefaultPrefixTemplate = "[${role_name}${local_rank}]:";

/// ddprun's where there are several nodes, whose local ranks are the same.
inline constexpr const char* kRankPrefixTemplate = "[${rank}]:";

/// What $role_name, $rank and $local_rank stand for.
struct PrefixValues {
  std::string_view role_name;
  int rank = 0;
  int local_rank = 0;
};

/// By the rules of options/string_template.hpp.
std::string fill_prefix_template(std::string_view text, const PrefixValues& values);

}  // namespace ddp::launcher
