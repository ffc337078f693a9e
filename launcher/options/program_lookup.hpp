// Finds the program before anything is started, so that a wrong name is one clear line and not one failure per rank.
#pragma once

#include <string>

namespace ddp::launcher {

/// The file to execute for @p name: @p name itself when it contains a slash, else the first executable file of that
/// name in the folders of @p search_path (colon-separated; an empty part means the current folder), as execvp(3) does.
/// Throws ExitError with kExitNotFound when there is no such file, kExitNotExecutable when it cannot be executed.
std::string find_program(const std::string& name, const std::string& search_path);

}  // namespace ddp::launcher
