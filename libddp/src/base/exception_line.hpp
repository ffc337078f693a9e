// Finds in a Python program's last words what it failed with.
#pragma once

#include <string_view>

namespace ddp::base {

/// "ValueError: bad loss": the first line of the message below the last traceback in @p text, also where the beginning
/// of the traceback is cut off, and where torch has put "[rank3]: " before all of its lines. Empty where there is no
/// traceback. Points into @p text.
std::string_view exception_line(std::string_view text);

}  // namespace ddp::base
