// Names of signals.
#pragma once

#include <string>

namespace ddp::base {

/// "SIGTERM" for SIGTERM, "SIGRTMIN+3" for real-time signals.
std::string signal_name(int signal);

}  // namespace ddp::base
