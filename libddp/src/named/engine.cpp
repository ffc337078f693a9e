// The agreement of ranks, and the ends of operations. Steps of groups: named/steps.cpp.
#include "named/engine.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/message.hpp"
#include "collectives/wait_ladder.hpp"
#include "named/comparison.hpp"

namespace ddp::named {
namespace {

// How long an operation that is waited for, and any other, may be held for its turn in the learned order while this
// rank has not submitted those before it.
constexpr std::chrono::milliseconds kHeldWhileAwaited{1};
constexpr std::chrono::milliseconds kHeld{50};
// A thread that waits looks at least so often.
constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::seconds kLastSteps{5};
constexpr std::chrono::milliseconds kMostPatience{5000};
constexpr std::size_t kMostKnown = 20'000;  // operations: names that never repeat must not fill the memory

/// A part of the shortest time after which something is said.
std::chrono::milliseconds patience_of(const NamedOptions& options, std::chrono::milliseconds limit) {
  const auto first = options.stall_check.count() > 0 ? std::min(options.stall_check, limit) : limit;
  return std::min(first / 4, kMostPatience);
}

ProcessGroup group_of_all(const ProcessGroup& parent) {
  ProcessGroup group = parent;
  std::vector<int> all(static_cast<std::size_t>(group.size()));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  return *group.new_group(all);
}

}  // namespace

Engine::Engine(const ProcessGroup& parent, const NamedOptions& options)
    : parent_(parent),
      options_(options),
      own_(parent.global_ranks()[static_cast<std::size_t>(parent.rank())]),
      limit_(options.stall_shutdown.count() > 0 ? options.stall_shutdown : parent.timeout()),
      patience_(patience_of(options, limit_)),
      star_(parent_) {
  sets_.emplace(0, std::make_shared<SetState>(0, group_of_all(parent)));
  if (parent.rank() == 0) coordinator_.emplace(parent.global_ranks(), options.fusion_bytes);
}

Engine::~Engine() {
  if (answering_.joinable()) answering_.detach();  // a forked child's, which has no such thread: shutdown() joins it
}

SetState& Engine::set_of(const Lock& /*lock*/, int number, const Key& key) {
  if (end_) throw Error{*end_};
  const auto found = sets_.find(number);
  if (found != sets_.end()) return *found->second;
  base::throw_invalid_argument(name_of(key),
                               fmt::format("this rank is not in process set {}, or it was removed", number),
                               "submit operations on the ranks of the set only");
}

Engine::PendingPointer Engine::submit(Request request, NamedCall call) {
  if (fork_guard_.forked()) fork_guard_.check(name_of(request.key));
  auto pending = std::make_shared<Pending>();
  pending->subject = std::make_shared<Subject>();
  pending->subject->tensors = std::move(call.tensors);
  pending->subject->splits = std::move(call.splits);
  pending->subject->keep_alive = std::move(call.keep_alive);
  pending->subject->request = std::move(request);
  pending->set = call.set;
  pending->since = Deadline::Clock::now();
  bool goes_on = false;
  {
    Lock lock(mutex_);
    const Key& key = pending->subject->request.key;
    SetState& set = set_of(lock, call.set, key);
    if (!set.active.emplace(key, pending).second) {
      base::throw_invalid_argument(name_of(key), "an operation of this name is under way",
                                   "wait for it, or give another name");
    }
    last_key_ = key;
    last_since_ = set.submitted_last = pending->since;
    hold(lock, set, pending);
    if (!set.order && !set.unsent.empty()) {
      if (parent_.size() == 1) {
        flush(lock);
        decide(lock);
      } else if (!std::exchange(woken_, true)) {
        star_.wake();
      }
    }
    goes_on = has_steps(lock);
  }
  if (goes_on) advance_all();
  return pending;
}

/// Announces it, or keeps it for its turn.
void Engine::hold(const Lock& lock, SetState& set, PendingPointer pending) {
  const Request& request = pending->subject->request;
  if (!set.order) {
    pending->phase = Pending::Phase::announced;
    pending->announced = Deadline::Clock::now();
    set.unsent.push_back(request);
    return;
  }
  pending->phase = Pending::Phase::held;
  const auto known = set.known.find(set.order->model_of(request.key));
  const bool fits = known != set.known.end() && is_compared_part(known->second, request.key.kind, request.facts);
  if (!fits || !set.order->hold(request.key)) set.ending = true;
  offer_token(lock, set);
}

Engine::PendingPointer Engine::join() {
  fork_guard_.check("joining named operations");
  auto pending = std::make_shared<Pending>();
  pending->since = Deadline::Clock::now();
  {
    Lock lock(mutex_);
    if (end_) throw Error{*end_};
    if (joined_) base::throw_invalid_argument("join()", "this rank has joined already", "join once");
    joined_ = pending;
    join_told_ = false;
    record_join(lock);
    for (auto& [number, set] : sets_) {
      if (!set->order) continue;
      set->ending = true;
      offer_token(lock, *set);
      send(lock, {Stuck{.set = number, .epoch = set->epoch}});
    }
    flush(lock);
    decide(lock);
  }
  advance_all();
  return pending;
}

void Engine::record_join(const Lock& /*lock*/) {
  if (!joins_) {
    const ProcessGroup& all = sets_.at(0)->group;
    joins_ = collectives::FlightRecorder::process().join({.name = "join of " + all.name(),
                                                          .backend = all.backend(),
                                                          .rank = all.rank(),
                                                          .global_ranks = all.global_ranks(),
                                                          .timeout = limit_});
  }
  Operation barrier;
  barrier.sequence = joins_->last_queued() + 1;
  join_slot_ = joins_->record(barrier);
}

void Engine::flush(const Lock& lock) {
  woken_ = false;
  for (auto& [number, set] : sets_) {
    if (set->unsent.empty()) continue;
    send(lock, {Announcement{.set = number, .epoch = set->epoch, .requests = std::exchange(set->unsent, {})}});
  }
  // behind what this rank has submitted before: that is not announced while an order holds it
  const bool follows = std::any_of(sets_.begin(), sets_.end(), [](const auto& each) { return each.second->order; });
  if (!joined_ || join_told_ || follows) return;
  join_told_ = true;
  send(lock, {Joined{}});
}

void Engine::send(const Lock& lock, ToCoordinator message) {
  if (!coordinator_) {
    ++counts_.messages;
    return star_.send(0, base::encode(message));
  }
  if (auto* const announcement = std::get_if<Announcement>(&message.content))
    coordinator_->announce(own_, std::move(*announcement), Deadline::Clock::now());
  if (std::holds_alternative<Joined>(message.content)) coordinator_->join(own_);
  if (const auto* const stuck = std::get_if<Stuck>(&message.content)) leave_late(lock, *stuck);
  if (auto* const doing = std::get_if<Doing>(&message.content)) take_answer(lock, own_, std::move(*doing));
}

/// On rank 0, where all are to do it: tells the others.
void Engine::leave_late(const Lock& lock, const Stuck& stuck) {
  if (coordinator_) {
    counts_.messages += static_cast<std::uint64_t>(parent_.size()) - 1;
    const Bytes message = base::encode(FromCoordinator{stuck});
    for (int rank = 1; rank < parent_.size(); ++rank) star_.send(rank, message);
  }
  const auto found = sets_.find(stuck.set);
  if (found == sets_.end() || !found->second->order || found->second->epoch != stuck.epoch) return;
  if (found->second->token) return;  // it waits, too
  found->second->ending = true;
  offer_token(lock, *found->second);
}

/// What a token waits for is what rank 0 cannot see.
void Engine::tell_where_late(const Lock& lock, SetState& set) {
  if (!set.running || !set.running->token || end_) return;
  Token& token = *set.running->token;
  if (token.told || token.all.empty() || Deadline::Clock::now() - token.since < patience_) return;
  token.told = true;
  send(lock, {Stuck{.set = set.number, .epoch = set.epoch}});
}

/// Of rank 0.
void Engine::decide(const Lock& lock) {
  if (!coordinator_) return;
  const auto& world = parent_.global_ranks();
  for (auto& [rank, message] : coordinator_->decide()) {
    if (rank == own_) {
      apply(lock, std::move(message));
      continue;
    }
    ++counts_.messages;
    star_.send(static_cast<int>(std::find(world.begin(), world.end(), rank) - world.begin()), base::encode(message));
  }
}

void Engine::apply(const Lock& lock, FromCoordinator message) {
  if (auto* const decision = std::get_if<Decision>(&message.content)) apply_decision(lock, *decision);
  if (auto* const learned = std::get_if<Learned>(&message.content)) apply_learned(lock, *learned);
  if (const auto* const all = std::get_if<AllJoined>(&message.content); all != nullptr && joined_) {
    joined_->last_joined = all->last;
    finish_join(lock, std::nullopt);
  }
  if (auto* const ended = std::get_if<Ended>(&message.content)) end_all(lock, Error{std::move(ended->error)});
  if (const auto* const stuck = std::get_if<Stuck>(&message.content)) leave_late(lock, *stuck);
  if (const auto* const question = std::get_if<Question>(&message.content)) answer(lock, *question);
  if (const auto* const recording = std::get_if<Recording>(&message.content)) set_recording(lock, *recording);
}

void Engine::apply_decision(const Lock& lock, Decision& decision) {
  const auto found = sets_.find(decision.set);
  if (found == sets_.end()) return;
  SetState& set = *found->second;
  if (set.order) return set.deferred.push_back(std::move(decision));
  if (set.known.size() > kMostKnown) set.known.clear();
  for (auto& batch : decision.batches) {
    std::vector<PendingPointer> operations;
    std::vector<std::shared_ptr<Subject>> subjects;
    for (Request& request : batch) {
      const auto own = set.active.find(request.key);
      if (own == set.active.end()) {  // this rank has joined
        set.known.insert_or_assign(request.key, compared_part(request.key.kind, request.facts));
        subjects.push_back(stand_in(request));
        continue;
      }
      const Facts& facts = own->second->subject->request.facts;
      set.known.insert_or_assign(request.key, compared_part(request.key.kind, facts));
      own->second->phase = Pending::Phase::running;
      operations.push_back(own->second);
      subjects.push_back(own->second->subject);
      std::erase_if(set.unsent, [&](const Request& unsent) { return unsent.key == request.key; });
    }
    counts_.negotiated += subjects.size();
    push(lock, set, std::move(operations), std::move(subjects));
  }
  for (Failure& failure : decision.failures) {
    const auto own = set.active.find(failure.key);
    if (own != set.active.end()) finish(lock, *PendingPointer(own->second), Error{std::move(failure.error)});
  }
}

void Engine::apply_learned(const Lock& lock, Learned& learned) {
  const auto found = sets_.find(learned.set);
  if (found == sets_.end()) return;
  SetState& set = *found->second;
  set.epoch = learned.epoch;
  set.order.emplace(std::move(learned.batches), std::move(learned.eager));
  set.fusion_bytes = learned.fusion_bytes;
  set.ending = joined_ != nullptr;
  set.unsent.clear();
  for (const auto& [key, pending] : set.active) {
    if (pending->phase != Pending::Phase::announced) continue;
    pending->since = Deadline::Clock::now();
    hold(lock, set, pending);
  }
  offer_token(lock, set);
}

/// All ranks of the set do it behind the same batch.
void Engine::leave_order(const Lock& lock, SetState& set) {
  ++set.epoch;
  set.order.reset();
  set.ending = false;
  for (const auto& [key, pending] : set.active) {
    if (pending->phase == Pending::Phase::held) hold(lock, set, pending);
  }
  for (Decision& decision : std::exchange(set.deferred, {})) apply_decision(lock, decision);
  if ((!set.unsent.empty() || joined_) && !std::exchange(woken_, true)) star_.wake();
}

void Engine::leave_where_stuck(const Lock& lock, SetState& set, std::chrono::milliseconds limit) {
  if (!set.order || set.token || set.running || !set.queue.empty()) return;
  if (!is_stuck(set.active, set.submitted_last, Deadline::Clock::now(), limit)) return;
  set.ending = true;
  offer_token(lock, set);
}

void Engine::arrived(int rank, const Bytes& message) {
  Lock lock(mutex_);
  if (!coordinator_) return apply(lock, base::decode<FromCoordinator>(message));
  const int who = parent_.global_ranks()[static_cast<std::size_t>(rank)];
  auto content = base::decode<ToCoordinator>(message).content;
  if (auto* const announcement = std::get_if<Announcement>(&content))
    coordinator_->announce(who, std::move(*announcement), Deadline::Clock::now());
  if (std::holds_alternative<Joined>(content)) coordinator_->join(who);
  if (const auto* const stuck = std::get_if<Stuck>(&content)) leave_late(lock, *stuck);
  if (auto* const doing = std::get_if<Doing>(&content)) take_answer(lock, who, std::move(*doing));
  if (const auto* const spans = std::get_if<Spans>(&content)) take_spans(lock, who, *spans);
  if (auto* const leaving = std::get_if<Leaving>(&content); leaving != nullptr && !end_) {
    const Error error{std::move(leaving->error)};
    tell_end(lock, error);
    end_all(lock, error);
  }
}

void Engine::lost(int rank, const std::string& cause) {
  Lock lock(mutex_);
  const int who = parent_.global_ranks()[static_cast<std::size_t>(rank)];
  recorders_.erase(who);
  changed_.notify_all();
  if (end_) return;
  const Error error{{.code = ErrorCode::peer_lost,
                     .attempted = "agreeing on named operations",
                     .cause = fmt::format("rank {} has died or left: {}", who, cause),
                     .ranks = {who},
                     .hint = "its own output says why"}};
  tell_end(lock, error);
  end_all(lock, error);
}

/// By rank 0 to all, by others to rank 0.
void Engine::tell_end(const Lock& /*lock*/, const Error& error) {
  if (!coordinator_) return star_.send(0, base::encode(ToCoordinator{Leaving{.error = error.detail()}}));
  const Bytes message = base::encode(FromCoordinator{Ended{.error = error.detail()}});
  for (int rank = 1; rank < parent_.size(); ++rank) star_.send(rank, message);
}

std::optional<Deadline> Engine::round() {
  std::optional<Deadline> next;
  try {
    {
      Lock lock(mutex_);
      if (!end_) {
        flush(lock);
        decide(lock);
        next = look_after_waiting(lock);
      }
    }
    advance_all();
    if (const auto when = look_after_timeline()) next = next ? earlier(*next, *when) : when;
  } catch (const std::exception& problem) {  // as of memory that is missing: the thread is the library's
    Lock lock(mutex_);
    const Error error = unexpected("agreeing on named operations", problem);
    tell_end(lock, error);
    end_all(lock, error);
  }
  return next;
}

std::optional<Deadline> Engine::look_after_waiting(const Lock& lock) {
  std::optional<Deadline> next;
  if (suspicion_ && suspicion_->second.expired()) {
    tell_end(lock, suspicion_->first);
    end_all(lock, suspicion_->first);
    return next;
  }
  const auto sooner = [&next](Deadline when) { next = next ? earlier(*next, when) : when; };
  if (suspicion_) sooner(suspicion_->second);
  for (auto& [number, set] : sets_) {
    leave_where_stuck(lock, *set, kHeld);
    const bool holds = set->order && std::any_of(set->active.begin(), set->active.end(), [](const auto& each) {
                         return each.second->phase == Pending::Phase::held;
                       });
    if (holds && !set->token) sooner(Deadline::after(kHeld));
  }
  if (const auto when = coordinator_ ? report_stalls(lock) : look_after_first(lock)) sooner(*when);
  return next;
}

bool Engine::done(Pending& pending) {
  fork_guard_.check("asking for a named operation");
  const Lock lock(mutex_);
  if (const auto set = sets_.find(pending.set); set != sets_.end()) tell_where_late(lock, *set->second);
  return pending.phase == Pending::Phase::done;
}

bool Engine::wait(Pending& pending, Deadline deadline) {
  fork_guard_.check("waiting for a named operation");
  collectives::WaitLadder ladder(false);  // for another thread that is about to make use of an end
  for (;;) {
    std::optional<Work> current;
    {
      Lock lock(mutex_);
      if (pending.phase == Pending::Phase::done) return true;
      if (deadline.expired()) return false;
      if (woken_ && !end_) {
        flush(lock);
        decide(lock);
      }
      const auto set = sets_.find(pending.set);
      if (set != sets_.end()) {
        leave_where_stuck(lock, *set->second, kHeldWhileAwaited);
        tell_where_late(lock, *set->second);
        current = set->second->current;
        const bool idle = !current && set->second->queue.empty();
        if (idle && pending.phase != Pending::Phase::done) {
          const Deadline soon = Deadline::after(pending.phase == Pending::Phase::held ? kHeldWhileAwaited : kLook);
          changed_.wait_until(lock, earlier(deadline, soon).when());
        }
      } else if (pending.phase != Pending::Phase::done) {
        changed_.wait_until(lock, earlier(deadline, Deadline::after(kLook)).when());
      }
    }
    advance_all();
    if (!current) continue;
    try {
      current->wait(earlier(deadline, Deadline::after(kLook)));
    } catch (const Error&) {  // its own end, or that it runs still
    }
    if (done(pending)) return true;
    if (const auto rest_for = ladder.pause(); rest_for != std::chrono::microseconds::zero()) {
      std::this_thread::sleep_for(rest_for);
      ladder.rested();
    }
  }
}

int Engine::add_set(const std::vector<int>& ranks, Deadline deadline) {
  const std::lock_guard changing(changing_sets_);
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  const auto& world = parent_.global_ranks();
  std::vector<int> places;
  for (const int rank : sorted) {
    const auto place = std::find(world.begin(), world.end(), rank);
    if (place == world.end() || sorted.size() != ranks.size()) {
      base::throw_invalid_argument(
          "adding a process set",
          place == world.end() ? fmt::format("rank {} is not in the job", rank) : "a rank is in it twice",
          "give ranks of the job, each once");
    }
    places.push_back(static_cast<int>(place - world.begin()));
  }
  if (sorted.empty()) base::throw_invalid_argument("adding a process set", "it has no ranks", "give at least one");
  Request request{.key = {.kind = Kind::add_set, .name = fmt::format("#{}", ++changes_)}, .facts = {.ranks = sorted}};
  const PendingPointer pending = submit(std::move(request), {});
  if (!wait(*pending, deadline)) {
    throw Error{{.code = ErrorCode::timeout,
                 .attempted = "adding a process set",
                 .cause = "not all ranks did it in time",
                 .hint = "add it on all ranks"}};
  }
  if (pending->error) throw Error{*pending->error};
  auto group = parent_.new_group(places);
  const Lock lock(mutex_);
  const int number = ++added_;
  if (group) sets_.emplace(number, std::make_shared<SetState>(number, std::move(*group)));
  return number;
}

void Engine::remove_set(int number, Deadline deadline) {
  const std::lock_guard changing(changing_sets_);
  if (number == 0) base::throw_invalid_argument("removing a process set", "it is the set of all ranks", {});
  Request request{.key = {.kind = Kind::remove_set, .name = fmt::format("#{}", ++changes_)},
                  .facts = {.ranks = {number}}};
  const PendingPointer pending = submit(std::move(request), {});
  if (!wait(*pending, deadline)) {
    throw Error{{.code = ErrorCode::timeout,
                 .attempted = "removing a process set",
                 .cause = "not all ranks did it in time",
                 .hint = "remove it on all ranks"}};
  }
  if (pending->error) throw Error{*pending->error};
  SetPointer removed;  // goes without the mutex
  Lock lock(mutex_);
  const auto found = sets_.find(number);
  if (found == sets_.end()) return;
  removed = found->second;
  end_set(lock, *removed,
          Error{{.code = ErrorCode::aborted,
                 .attempted = fmt::format("using process set {}", number),
                 .cause = "it has been removed"}});
  sets_.erase(found);
  lock.unlock();
  advance(removed);  // what all ranks have agreed on
}

std::vector<int> Engine::ranks_of(int number) {
  Lock lock(mutex_);
  return set_of(lock, number, {}).group.global_ranks();
}

void Engine::finish(const Lock& /*lock*/, Pending& pending, const std::optional<Error>& error) {
  if (pending.phase == Pending::Phase::done) return;
  pending.error = error;
  pending.phase = Pending::Phase::done;
  if (pending.subject) {
    if (const auto set = sets_.find(pending.set); set != sets_.end())
      set->second->active.erase(pending.subject->request.key);
    pending.subject->tensors.clear();
    pending.subject->keep_alive.reset();
  }
  changed_.notify_all();
}

void Engine::finish_join(const Lock& lock, const std::optional<Error>& error) {
  joins_->finished(join_slot_, !error);
  finish(lock, *std::exchange(joined_, nullptr), error);
}

/// What runs goes on: all ranks have agreed on it.
void Engine::end_set(const Lock& lock, SetState& set, const Error& error) {
  std::vector<PendingPointer> waiting;
  for (const auto& [key, pending] : set.active) {
    if (pending->phase != Pending::Phase::running) waiting.push_back(pending);
  }
  for (const PendingPointer& pending : waiting) {
    finish(lock, *pending, error);
    set.active.erase(pending->subject->request.key);
  }
  set.unsent.clear();
}

void Engine::end_all(const Lock& lock, const Error& error) {
  if (!end_) end_ = error;
  for (auto& [number, set] : sets_) {
    // a rank that has left regularly may have left behind what is under way: then the token says so, or fails
    if (error.code() == ErrorCode::aborted && set->token && !set->failed) continue;
    end_set(lock, *set, error);
  }
  if (joined_) finish_join(lock, error);
  changed_.notify_all();
}

void Engine::shutdown() noexcept {
  std::map<int, SetPointer> gone;
  if (fork_guard_.forked()) return;  // another thread of the parent may have held the mutex
  try {
    stop_timeline();
    Lock lock(mutex_);
    if (!coordinator_) send_spans(lock, 0, true);
    const Error error{{.code = ErrorCode::aborted,
                       .attempted = "using named operations",
                       .cause = fmt::format("rank {} has shut them down", own_),
                       .ranks = {own_},
                       .hint = "let all ranks submit the same operations before one leaves"}};
    if (!end_) tell_end(lock, error);
    end_all(lock, error);
    changed_.wait_until(lock, Deadline::after(kLastSteps).when(), [this] {
      return std::all_of(sets_.begin(), sets_.end(), [](const auto& each) {
        return (!each.second->running || each.second->running->token) && each.second->queue.empty();
      });
    });
    for (auto& [number, set] : sets_) end_set(lock, *set, error);
  } catch (const std::exception& problem) {
    base::log(base::LogLevel::error, "ending named operations failed: {}", problem.what());
  }
  star_.end();
  if (answering_.joinable()) answering_.join();  // whom only the star's thread starts
  const Lock lock(mutex_);
  gone.swap(sets_);
}

NamedCounts Engine::counts() {
  const Lock lock(mutex_);
  NamedCounts counts = counts_;
  counts.wake_ups = star_.wake_ups();
  return counts;
}

}  // namespace ddp::named
