// Makes errors of what fails: errno with its symbolic name, arguments that a caller must not give, a Python traceback's
// last line.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <ddp/error.hpp>

namespace ddp::base {

// Turns errno into ddp::Error with the symbolic name people search for ("ECONNREFUSED (111)").

/// "ECONNREFUSED (111)" for ECONNREFUSED.
std::string errno_name(int number);

/// "Connection refused" for ECONNREFUSED. Thread-safe.
std::string errno_text(int number);

/// An Error of code system (or @p code) whose cause and native code come from @p number.
Error system_error(std::string attempted, int number, std::string hint = {}, ErrorCode code = ErrorCode::system);

// The error for arguments that a caller must not give.

[[noreturn]] inline void throw_invalid_argument(std::string attempted, std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = std::move(attempted),
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

// Finds in a Python program's last words what it failed with.

/// "ValueError: bad loss": the first line of the message below the last traceback in @p text, also where the beginning
/// of the traceback is cut off, and where torch has put "[rank3]: " before all of its lines. Empty where there is no
/// traceback. Points into @p text.
std::string_view exception_line(std::string_view text);

}  // namespace ddp::base
