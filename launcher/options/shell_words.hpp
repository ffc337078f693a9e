// Words of a command as a shell divides them: --ssh-command 'ssh -i "my key"'.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

/// Blanks divide; quotes of both kinds and backslashes keep, as in sh(1). Nothing is expanded: $, ~ and * stay. Throws
/// ExitError(kExitUsage) that names @p option for no word, an open quote, and a backslash at the end.
std::vector<std::string> split_shell_words(const std::string& option, const std::string& text);

/// @p word in quotes that any shell takes off again, csh too.
std::string shell_quoted(std::string_view word);

}  // namespace ddp::launcher
