// Lines on standard error from programs that must go on, or end with the right status, when nobody can read them.
#pragma once

#include <string_view>

namespace ddp::base {

/// Writes @p line and a newline in one call. Does nothing where standard error is closed or full.
void write_stderr_line(std::string_view line) noexcept;

}  // namespace ddp::base
