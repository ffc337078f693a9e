#include "base/signal_name.hpp"

#include <signal.h>

#include <cstring>

#include <fmt/format.h>

namespace ddp::base {

std::string signal_name(int signal) {
  if (const char* name = sigabbrev_np(signal); name != nullptr) return fmt::format("SIG{}", name);
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) return fmt::format("SIGRTMIN+{}", signal - SIGRTMIN);
  return fmt::format("signal {}", signal);
}

}  // namespace ddp::base
