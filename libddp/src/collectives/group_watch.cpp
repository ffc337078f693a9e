#include "collectives/group_watch.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "collectives/group_engine.hpp"

namespace ddp::collectives {
namespace {

// After an interruption by something more urgent.
constexpr std::chrono::milliseconds kProbeAgain{500};
// Polls take some 100 us, a hung call of a backend for ever: the watch of other groups must not wait for it.
constexpr std::chrono::milliseconds kLongestTurn{10};
// Between two tries to look into a group that others keep: each makes the process's other groups wait.
constexpr std::chrono::milliseconds kBetweenTurns{100};

/// For an operation on a device: it may have waited for the caller's own work most of the time.
std::string times_of(const WorkState& work, WorkState::Time now) {
  const auto ago = [now](WorkState::Time then) { return std::chrono::duration<double>(now - then).count(); };
  const std::string begun = work.begun_at ? fmt::format("began {:.1f} s ago", ago(*work.begun_at))
                                          : std::string("has not begun on the device");
  return fmt::format("it was issued {:.1f} s ago and {}", ago(work.issued_at), begun);
}

std::optional<DrivingTurn> brief_turn(GroupEngine& group) {
  return group.lanes().take_turn(Deadline::after(kLongestTurn).when());
}

}  // namespace

GroupWatch::GroupWatch(GroupEngine& group, const OperationLog& log)
    : group_(group),
      detector_(std::make_unique<FailureDetector>(group.members(), log, [this] { group_.life().fail(); })),
      next_event_(Time::max().time_since_epoch().count()) {}

GroupWatch::~GroupWatch() { stop(); }

void GroupWatch::expect(Time event) noexcept {
  const std::int64_t time = event.time_since_epoch().count();
  std::int64_t known = next_event_.load();
  while (time < known && !next_event_.compare_exchange_weak(known, time)) {
  }
}

void GroupWatch::look(Time now) {
  const Time next{Time::duration{next_event_.load(std::memory_order_relaxed)}};
  if (now < next || inquiring_ || !next_incident()) return;
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  if (thread_.joinable()) thread_.join();  // it is at its end
  inquiring_ = true;
  try {
    thread_ = base::start_thread([this] { inquire(); });
  } catch (const Error& error) {
    inquiring_ = false;
    // without any thread, better late for other groups than never for this one
    base::log(base::LogLevel::warning, "looking into an operation of group '{}' on the progress thread: {}",
              group_.members().name, error.what());
    if (const auto incident = next_incident()) investigate(*incident);
  }
}

void GroupWatch::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (thread_.joinable()) thread_.join();
  detector_->close();
}

void GroupWatch::report_close() noexcept {
  const GroupMembers& members = group_.members();
  if (!members.channel || group_.life().failed() || group_.lanes().stuck()) return;
  const int own = members.global(members.rank);
  try {
    std::optional<Work> first;
    if (const auto turn = brief_turn(group_)) {
      group_.lanes().visit_unfinished(*turn, [&](WorkState& work, bool) {
        if (!first) first.emplace(work);
      });
    }
    if (!first) return;
    detector_->notify_all(Error{{.code = ErrorCode::peer_lost,
                                 .attempted = WorkState::of(*first).description(),
                                 .cause = fmt::format("rank {} closed the group while it was under way", own),
                                 .ranks = {own},
                                 .hint = "look at the last output of that rank"}});
  } catch (const std::exception& error) {  // they find out themselves, later
    base::log(base::LogLevel::warning, "announcing the end of group '{}' to its ranks: {}", members.name, error.what());
  }
}

void GroupWatch::end_group(const Error& error) noexcept {
  try {
    if (detector_->verdict()) return;  // which the others have, or find out, too
    const Error verdict = detector_->agree(error);
    group_.life().fail();
    if (group_.members().channel) detector_->notify_all(verdict);
  } catch (const std::exception& failure) {  // they find out themselves, later
    base::log(base::LogLevel::warning, "announcing the end of group '{}' to its ranks: {}", group_.members().name,
              failure.what());
  }
}

/// The most urgent of what must be investigated now. While others keep the right to drive: only what is overdue.
std::optional<GroupWatch::Incident> GroupWatch::next_incident() {
  if (group_.life().over()) return std::nullopt;
  const auto turn = brief_turn(group_);
  if (!turn) return overdue();
  // first: what is added from now on says itself when it is due
  next_event_.store(Time::max().time_since_epoch().count());
  const Time now = Deadline::Clock::now();
  WorkState* most = nullptr;
  auto kind = Incident::Kind::probe;
  group_.lanes().visit_unfinished(*turn, [&](WorkState& work, bool posted) {
    const bool failing = work.phase == WorkState::Phase::failing;
    const bool probed = posted && group_.members().channel;
    expect(failing ? now : probed ? std::min(work.investigate_at, work.next_probe) : work.investigate_at);
    const auto take = [&](Incident::Kind its) {
      if (most != nullptr && kind <= its) return;
      most = &work;
      kind = its;
    };
    if (failing) {
      take(Incident::Kind::failure);
    } else if (work.investigate_at <= now) {
      take(Incident::Kind::deadline);
    } else if (probed && work.next_probe <= now) {
      take(Incident::Kind::probe);
    }
  });
  if (most == nullptr) return std::nullopt;
  const bool failed = kind == Incident::Kind::failure;
  const std::size_t suspect = failed ? most->suspect : group_.lanes().suspect_of(*turn, *most);
  if (!failed && most->is_transfer()) {
    const Operation& operation = most->operations()[suspect];
    group_.log().set_long_transfer(LongTransfer{.description = operation.description(),
                                                .peer = operation.root,
                                                .receives = operation.kind == OperationKind::recv});
    most->told = true;
  }
  return Incident{.kind = kind,
                  .work = Work{*most},
                  .failure = failed ? most->error : std::nullopt,
                  .operation = suspect,
                  .times = most->lane->traits.stream_ordered ? times_of(*most, now) : std::string()};
}

/// Without the right to drive.
std::optional<GroupWatch::Incident> GroupWatch::overdue() {
  const Time now = Deadline::Clock::now();
  next_event_.store(Time::max().time_since_epoch().count());
  expect(now + kBetweenTurns);
  std::optional<Work> first;
  for (const Work& handle : group_.submission().works()) {
    const WorkState& work = WorkState::of(handle);
    if (work.done() || work.comparison) continue;
    expect(work.investigate_at);
    if (work.investigate_at > now) continue;
    if (!first || work.investigate_at < WorkState::of(*first).investigate_at) first = handle;
  }
  if (!first) return std::nullopt;
  return Incident{.kind = Incident::Kind::deadline, .work = std::move(*first)};
}

/// Whether a failure or a deadline is known to wait to be investigated.
bool GroupWatch::urgent() {
  if (group_.lanes().stuck()) return true;
  const auto turn = brief_turn(group_);
  if (!turn) return false;
  bool found = false;
  const Time now = Deadline::Clock::now();
  group_.lanes().visit_unfinished(*turn,
                                  [&](const WorkState& work, bool) { found = found || work.investigate_at <= now; });
  return found;
}

void GroupWatch::note_probe(WorkState& work, bool interrupted) {
  const auto turn = brief_turn(group_);
  if (!turn) return;  // it is probed again
  ++work.probes;
  work.probe_interval = std::min(work.probe_interval * 2, longest_probe_interval(group_.members().peer_timeout));
  work.next_probe = Deadline::Clock::now() + (interrupted ? kProbeAgain : work.probe_interval);
}

void GroupWatch::inquire() {
  while (const auto incident = next_incident()) investigate(*incident);
  inquiring_ = false;
}

void GroupWatch::investigate(const Incident& incident) {
  WorkState& work = WorkState::of(incident.work);
  const Operation& operation = work.operations()[incident.operation];
  Life& life = group_.life();
  bool interrupted = false;
  switch (incident.kind) {
    case Incident::Kind::failure:
      detector_->investigate(
          operation, incident.failure, [&] { return !life.closing(); },
          incident.failure ? earlier(work.deadline, Deadline::after(group_.members().peer_timeout)) : work.deadline);
      break;
    case Incident::Kind::deadline:
      detector_->investigate(
          operation, std::nullopt, [&] { return !life.closing() && !work.done(); }, work.deadline);
      break;
    case Incident::Kind::probe:
      detector_->watch(operation, [&] {
        interrupted = life.closing() || work.done() || urgent();
        return !interrupted;
      });
      note_probe(work, interrupted);
      break;
  }
  const auto verdict = detector_->verdict();
  if (!verdict) return;
  // not in the verdict, which is the same on all ranks
  if (!incident.times.empty() && verdict->code() == ErrorCode::timeout) {
    base::log(base::LogLevel::warning, "group '{}', {}: {}", group_.members().name, work.description(), incident.times);
  }
  life.fail();
}

}  // namespace ddp::collectives
