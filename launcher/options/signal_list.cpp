// Names of signals as the C library knows them.
#include "options/signal_list.hpp"

#include <signal.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>

#include "options/option_values.hpp"

namespace ddp::launcher {
namespace {

/// "RTMIN+3" is 3 after @p base, "RTMAX-1" 1 before it.
std::optional<int> real_time_number(std::string_view name) {
  const bool from_min = name.starts_with("RTMIN");
  if (!from_min && !name.starts_with("RTMAX")) return std::nullopt;
  const int base = from_min ? SIGRTMIN : SIGRTMAX;
  std::string_view rest = name.substr(5);
  if (rest.empty()) return base;
  if (rest.front() != (from_min ? '+' : '-')) return std::nullopt;
  rest.remove_prefix(1);
  unsigned offset = 0;
  const auto [end, status] = std::from_chars(rest.data(), rest.data() + rest.size(), offset);
  if (status != std::errc{} || end != rest.data() + rest.size()) return std::nullopt;
  if (offset > static_cast<unsigned>(SIGRTMAX - SIGRTMIN)) return std::nullopt;
  return from_min ? base + static_cast<int>(offset) : base - static_cast<int>(offset);
}

}  // namespace

std::optional<int> signal_number(std::string_view name) {
  std::string upper{name};
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string_view word = upper;
  if (word.starts_with("SIG")) word.remove_prefix(3);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    const char* known = sigabbrev_np(signal);
    if (known != nullptr && word == known) return signal;
  }
  return real_time_number(word);
}

bool can_be_passed_on(int signal) {
  switch (signal) {
    case SIGKILL:
    case SIGSTOP:  // cannot be received
    case SIGCHLD:  // a rank has ended
    case SIGPIPE:  // ignored: see SignalInbox
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:  // faults of ddprun itself
    case SIGABRT: return false;
    default: return true;
  }
}

SignalList read_signals(std::string_view text) {
  SignalList list;
  for (const std::string_view name : parts_of(text, ',')) {
    if (name.empty()) continue;
    const auto signal = signal_number(name);
    if (!signal) {
      list.unknown.emplace_back(name);
    } else if (!can_be_passed_on(*signal)) {
      list.unusable.emplace_back(name);
    } else if (std::find(list.signals.begin(), list.signals.end(), *signal) == list.signals.end()) {
      list.signals.push_back(*signal);
    }
  }
  return list;
}

}  // namespace ddp::launcher
