// Options on failures and signals; lists of signals by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

/// The number of "SIGTERM", "TERM", "sigterm", "SIGRTMIN+3" or "RTMAX-1"; nothing for anything else.
std::optional<int> signal_number(std::string_view name);

/// Whether a program can receive the signal and continue, and ddprun does not need it itself.
bool can_be_passed_on(int signal);

/// A list of names, read.
struct SignalList {
  std::vector<int> signals;           ///< in the order given, each once
  std::vector<std::string> unknown;   ///< names that are no signal
  std::vector<std::string> unusable;  ///< names of signals that cannot be passed on
};

/// Names between commas; an empty text gives an empty list.
SignalList read_signals(std::string_view text);

}  // namespace ddp::launcher
