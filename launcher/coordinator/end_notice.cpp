#include "coordinator/end_notice.hpp"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::launcher {
namespace {

// Ranks without a handler are gone by then, also on a busy machine.
constexpr std::chrono::milliseconds kFirst{1'000};
// From the first line to the one with names.
constexpr std::chrono::seconds kThenNames{5};
constexpr std::size_t kMostHosts = 8;

std::string hosts_of(const std::vector<RankName>& ranks) {
  std::vector<std::string> hosts;
  std::size_t more = 0;
  for (const RankName& rank : ranks) {  // a node's ranks are consecutive
    if (!hosts.empty() && rank.host == hosts.back()) continue;
    hosts.size() < kMostHosts ? hosts.push_back(rank.host) : void(++more);
  }
  return fmt::format("{}{}", fmt::join(hosts, ", "), more > 0 ? fmt::format(" and {} more nodes", more) : "");
}

std::string names_of(const std::vector<RankName>& ranks) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostHosts); ++i)
    names.push_back(fmt::format("rank {} (pid {} on {})", ranks[i].rank, ranks[i].pid, ranks[i].host));
  const std::size_t more = ranks.size() - names.size();
  return fmt::format("{}{}", fmt::join(names, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

const char* next_step(int signal) {
  switch (signal) {
    case SIGINT: return "press Ctrl-C again to kill them";
    case SIGQUIT: return "press Ctrl-\\ again to read their stacks and kill them";
    default: return "press Ctrl-C twice to kill them now";
  }
}

}  // namespace

void EndNotice::begin(std::string cause, int signal, Deadline limit, Time now) {
  cause_ = std::move(cause);
  signal_ = signal;
  limit_ = limit;
  told_ = false;
  next_ = Deadline{now + kFirst};
}

std::optional<std::string> EndNotice::take(Time now, const std::vector<RankName>& left) {
  if (!next_ || now < next_->when()) return std::nullopt;
  next_.reset();
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(limit_->when() - now).count();
  if (left.empty() || seconds <= 0) return std::nullopt;
  if (std::exchange(told_, true))
    return fmt::format("{}: still running: {}; SIGKILL follows in {} s", cause_, names_of(left), seconds);
  next_ = Deadline{now + kThenNames};
  return fmt::format("{}: waiting up to {} s for {} rank{} on {}; {}", cause_, seconds, left.size(),
                     left.size() == 1 ? "" : "s", hosts_of(left), next_step(signal_));
}

}  // namespace ddp::launcher
