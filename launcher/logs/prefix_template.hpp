// Fills the template of a console line's prefix, by the rules of Python's string.Template that torchrun follows.
#pragma once

#include <string>
#include <string_view>

namespace ddp::launcher {

/// torchrun's prefix where no template is given.
inline constexpr std::string_view kDefaultPrefixTemplate = "[${role_name}${local_rank}]:";

/// What $role_name, $rank and $local_rank stand for.
struct PrefixValues {
  std::string_view role_name;
  int rank = 0;
  int local_rank = 0;
};

/// As safe_substitute() of Python's string.Template: "$$" becomes "$", "$name" and "${name}" the value. Unknown names
/// and malformed placeholders stay as they are.
std::string fill_prefix_template(std::string_view text, const PrefixValues& values);

}  // namespace ddp::launcher
