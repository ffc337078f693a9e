// What GroupDriver tells its GroupWatch: which operation is to be looked into, and when.
#include <algorithm>

#include <fmt/format.h>

#include "collectives/group_driver.hpp"
#include "collectives/progress_thread.hpp"

namespace ddp::collectives {
namespace {

// After an interruption by something more urgent.
constexpr std::chrono::milliseconds kProbeAgain{500};
// Polls take some 100 us, a hung call of a backend for ever: the watch of other groups must not wait for it.
constexpr std::chrono::milliseconds kLongestTurn{10};
// Of several operations: to look for all takes long, and one of so many is enough.
constexpr std::size_t kMostSuspects = 16;

/// Of an operation on a device: it may have waited for the caller's own work most of the time.
std::string times_of(const WorkState& work, WorkState::Time now) {
  const auto ago = [now](WorkState::Time then) { return std::chrono::duration<double>(now - then).count(); };
  const std::string begun = work.begun_at ? fmt::format("began {:.1f} s ago", ago(*work.begun_at))
                                          : std::string("has not begun on the device");
  return fmt::format("it was issued {:.1f} s ago and {}", ago(work.issued_at), begun);
}

}  // namespace

template <class Visit>
void GroupDriver::visit_unfinished(Visit&& visit) {
  for (Lane& lane : lanes_) {
    for (WorkState* work : lane.posted) visit(work->subject != nullptr ? *work->subject : *work, true);
    for (WorkState* work = lane.queue.front(); work != nullptr; work = work->next) {
      if (work->subject == nullptr) visit(*work, false);
    }
  }
}

/// Those that may be what others called differently, or did not call, take turns: of several sends and receives those
/// that wait, first of all for what does not come.
std::size_t GroupDriver::suspect_of(const WorkState& work) const {
  const auto operations = work.operations();
  std::vector<std::size_t> waiting;
  for (const bool sends_too : {false, true}) {
    if (work.request == nullptr || !work.is_transfer() || operations.size() == 1) break;
    for (std::size_t i = 0; i < operations.size() && waiting.size() < kMostSuspects; ++i) {
      if ((sends_too || operations[i].kind == OperationKind::recv) && work.request->waits(i)) waiting.push_back(i);
    }
    if (!waiting.empty()) return waiting[work.probes % waiting.size()];
  }
  return work.probes % operations.size();
}

std::optional<Concern> GroupDriver::concern() {
  if (failed_ || closing_) return std::nullopt;
  const Turn turn(*this, Deadline::after(kLongestTurn).when());
  if (!turn.taken()) return overdue();
  // first: what is submitted from now on says itself when it is due
  next_event_.store(Time::max().time_since_epoch().count());
  admit();
  const Time now = Deadline::Clock::now();
  WorkState* most = nullptr;
  auto kind = Concern::Kind::probe;
  visit_unfinished([&](WorkState& work, bool posted) {
    const bool failing = work.phase == WorkState::Phase::failing;
    const bool probed = posted && members_.channel;
    expect(failing ? now : probed ? std::min(work.investigate_at, work.next_probe) : work.investigate_at);
    const auto take = [&](Concern::Kind its) {
      if (most != nullptr && kind <= its) return;
      most = &work;
      kind = its;
    };
    if (failing) {
      take(Concern::Kind::failure);
    } else if (work.investigate_at <= now) {
      take(Concern::Kind::deadline);
    } else if (probed && work.next_probe <= now) {
      take(Concern::Kind::probe);
    }
  });
  if (most == nullptr) return std::nullopt;
  const std::size_t suspect = kind == Concern::Kind::failure ? most->suspect : suspect_of(*most);
  if (kind != Concern::Kind::failure && most->is_transfer()) {
    const Operation& operation = most->operations()[suspect];
    log_.set_long_transfer(LongTransfer{.description = operation.description(),
                                        .peer = operation.root,
                                        .receives = operation.kind == OperationKind::recv});
    most->told = true;
  }
  return Concern{.kind = kind,
                 .work = Work{*most},
                 .failure = kind == Concern::Kind::failure ? most->error : std::nullopt,
                 .operation = suspect,
                 .times = most->lane->traits.stream_ordered ? times_of(*most, now) : std::string()};
}

std::optional<Work> GroupDriver::first_unfinished() {
  if (failed_ || stuck_) return std::nullopt;
  const Turn turn(*this, Deadline::after(kLongestTurn).when());
  std::optional<Work> first;
  if (!turn.taken()) return first;
  admit();
  visit_unfinished([&](WorkState& work, bool) {
    if (!first) first.emplace(work);
  });
  return first;
}

bool GroupDriver::urgent() {
  if (stuck_) return true;
  const Turn turn(*this, Deadline::after(kLongestTurn).when());
  if (!turn.taken()) return false;
  admit();
  bool found = false;
  const Time now = Deadline::Clock::now();
  visit_unfinished([&](const WorkState& work, bool) { found = found || work.investigate_at <= now; });
  return found;
}

void GroupDriver::probed(WorkState& work, bool interrupted) {
  const Turn turn(*this, Deadline::after(kLongestTurn).when());
  if (!turn.taken()) return;  // it is probed again
  ++work.probes;
  work.probe_interval = std::min(work.probe_interval * 2, longest_probe_interval(members_.peer_timeout));
  work.next_probe = Deadline::Clock::now() + (interrupted ? kProbeAgain : work.probe_interval);
}

void GroupDriver::fail() noexcept {
  failed_ = true;
  if (own_progress_) own_progress_->hurry();
  ProgressThread::instance().hurry();
}

}  // namespace ddp::collectives
