// What set_python_prefix() was given.
#pragma once

#include <string>

namespace ddp::base {

/// Empty: nothing yet. Thread-safe.
std::string python_prefix();

}  // namespace ddp::base
