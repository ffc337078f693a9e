// Placeholders in texts of the user, by the rules of Python's string.Template that torchrun follows: in the arguments
// of programs, and in the prefix of console lines.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// As safe_substitute() of Python's string.Template: "$$" becomes "$", "$name" and "${name}" what @p value_of has for
/// the name. Names for which it has nothing and malformed placeholders stay as they are.
std::string fill_template(std::string_view text,
                          const std::function<std::optional<std::string>(std::string_view)>& value_of);

}  // namespace ddp::launcher
