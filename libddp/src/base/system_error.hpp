// Turns errno into ddp::Error with the symbolic name people search for ("ECONNREFUSED (111)").
#pragma once

#include <string>

#include <ddp/error.hpp>

namespace ddp::base {

/// "ECONNREFUSED (111)" for ECONNREFUSED.
std::string errno_name(int number);

/// "Connection refused" for ECONNREFUSED. Thread-safe.
std::string errno_text(int number);

/// An Error of code system (or @p code) whose cause and native code come from @p number.
Error system_error(std::string attempted, int number, std::string hint = {}, ErrorCode code = ErrorCode::system);

}  // namespace ddp::base
