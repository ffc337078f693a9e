#include "step_program/hang_watch.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "diagnostics/hang/process_table.hpp"
#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::srun_plugin {
namespace {

// As ddprun's: to look for a second.
constexpr std::chrono::seconds kLookLimit{10};
// What a value of the store may have, with what is around it.
constexpr std::size_t kLargestFacts = std::size_t{7} << 20U;

}  // namespace

HangWatch::HangWatch(HangWatchOptions options)
    : options_(std::move(options)), store_(options_.address, options_.port), events_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!events_) throw base::system_error("watching whether ranks get on (epoll_create1)", errno);
}

void HangWatch::watch(int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw base::system_error("watching whether ranks get on (epoll_ctl)", errno);
}

void HangWatch::say(NewsKind kind, Bytes content, std::uint32_t inquiry) {
  tell(store_, {.kind = kind, .node = options_.node, .inquiry = inquiry, .content = std::move(content)});
}

void HangWatch::started(int rank, pid_t pid) {
  ranks_[rank] = pid;
  if (++started_ != options_.local_tasks) return;
  std::vector<pid_t> processes;
  for (const auto& [number, process] : ranks_) processes.push_back(process);
  standstill_ = std::make_unique<diagnostics::StandstillWatch>(std::move(processes), options_.after);
  watch(standstill_->fd());
  say(NewsKind::watched);
}

void HangWatch::ended(int rank) {
  ranks_.erase(rank);
  if (standstill_ == nullptr || !ranks_.empty()) return;
  standstill_.reset();
  say(NewsKind::over);
}

/// Not before the ranks have stood still: another connection for each node, of which few have use.
void HangWatch::await_inquiry() {
  if (inquiry_) return;
  inquiry_.emplace(options_.address, options_.port);
  watch(inquiry_->fd());
  inquiry_->ask_wait({inquiry_key(next_inquiry_)});
}

void HangWatch::observe() {
  inquiry_->take_wait();
  observed_for_ = next_inquiry_++;
  inquiry_->ask_wait({inquiry_key(next_inquiry_)});
  std::vector<diagnostics::FoundRank> ranks;
  for (const auto& [rank, pid] : ranks_) {
    diagnostics::RankIdentity identity;
    identity.rank = rank;
    identity.world_size = static_cast<int>(options_.world_size);
    identity.local_size = static_cast<int>(options_.local_tasks);
    ranks.push_back({.pid = pid, .identity = std::move(identity)});
  }
  observer_ = std::make_unique<diagnostics::RankObserver>(std::move(ranks), options_.node, Deadline::after(kLookLimit));
  watch(observer_->fd());
}

void HangWatch::advance() {
  std::array<epoll_event, 4> events{};
  const int count = ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), 0);
  const auto ready = [&](int fd) {
    return std::any_of(events.begin(), events.begin() + std::max(count, 0),
                       [fd](const epoll_event& event) { return event.data.fd == fd; });
  };
  if (standstill_ != nullptr && ready(standstill_->fd())) {
    if (const auto still = standstill_->take()) {
      if (*still) await_inquiry();  // first, so that the question finds it waiting
      say(*still ? NewsKind::still : NewsKind::moving);
    }
  }
  if (inquiry_ && ready(inquiry_->fd()) && observer_ == nullptr) observe();
  if (observer_ == nullptr) return;
  auto facts = observer_->take();
  if (!facts) return;
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, observer_->fd(), nullptr);
  observer_.reset();
  Bytes encoded = diagnostics::encode(*facts);
  if (encoded.size() > kLargestFacts) {
    facts->ranks.clear();
    facts->notes = {"what its ranks do is too long to be told"};
    encoded = diagnostics::encode(*facts);
  }
  say(NewsKind::facts, std::move(encoded), observed_for_);
}

}  // namespace ddp::srun_plugin
