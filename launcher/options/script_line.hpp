// The "#!" line of a script: which interpreter it names, and why the kernel or env(1) would not find that.
#pragma once

#include <string>

namespace ddp::launcher {

/// What is wrong with the line of the script @p path, as a hint: the interpreter is not on this host, or its name ends
/// in a carriage return, as Windows' editors leave it. Empty where nothing is, where the file is no script, and where
/// it cannot be read.
std::string script_line_fault(const std::string& path);

}  // namespace ddp::launcher
