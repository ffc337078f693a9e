// What the groups of an Engine's sets do: one step after the other in each, tokens of the learned order among them.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "collectives/reduce_kernels.hpp"
#include "named/comparison.hpp"
#include "named/engine.hpp"

namespace ddp::named {
namespace {

// How long a rank that is gone from a group may take to say that it has left.
constexpr std::chrono::milliseconds kExplanation{300};

}  // namespace

/// Tells the others how far this rank has come in the learned order, where that is of use.
void Engine::offer_token(const Lock& /*lock*/, SetState& set) {
  if (!set.order || set.token || end_) return;
  const std::size_t ready = set.order->ready();
  if (ready == 0 && !set.ending) return;
  auto step = std::make_shared<Step>();
  step->token = std::make_shared<Token>();
  set.token = true;
  set.queue.push_back(std::move(step));
  changed_.notify_all();
}

void Engine::push(const Lock& /*lock*/, SetState& set, std::vector<PendingPointer> operations,
                  std::vector<std::shared_ptr<Subject>> subjects) {
  auto step = std::make_shared<Step>();
  const Kind kind = subjects.front()->request.key.kind;
  const bool exchanges = kind != Kind::barrier && kind != Kind::add_set && kind != Kind::remove_set;
  if (exchanges) step->execution = std::make_unique<Execution>(set.group, std::move(subjects));
  step->operations = std::move(operations);
  step->times.agreed = Deadline::Clock::now();
  set.queue.push_back(std::move(step));
  changed_.notify_all();
}

bool Engine::has_steps(const Lock& /*lock*/) const {
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& each) {
    return !each.second->queue.empty() && !each.second->advancing && !each.second->running;
  });
}

void Engine::advance_all() {
  std::vector<SetPointer> sets;
  {
    const Lock lock(mutex_);
    for (const auto& [number, set] : sets_) {
      if (!set->queue.empty() && !set->advancing && !set->running) sets.push_back(set);
    }
  }
  for (const SetPointer& set : sets) advance(set);
}

/// Takes steps until one runs.
void Engine::advance(const SetPointer& set) {
  Lock lock(mutex_);
  if (set->advancing) return;  // that thread goes on
  set->advancing = true;
  while (!set->running && !set->queue.empty()) {
    set->running = std::move(set->queue.front());
    set->queue.pop_front();
    lock.unlock();
    drive(set);
    lock.lock();
  }
  set->advancing = false;
}

/// Starts the next exchange of the step that runs.
void Engine::drive(const SetPointer& set) {
  const std::shared_ptr<Step> step = [&] {
    const Lock lock(mutex_);
    return set->running;
  }();
  std::optional<Work> work;
  try {
    if (step->token) work = start_token(*set, *step->token);
    if (step->execution) {
      StepTimes& times = step->times;
      const bool first = times.started == Pending::Time{};
      (first ? times.started : times.exchanged) = Deadline::Clock::now();
      work = step->execution->next();
      if (first) times.packed = Deadline::Clock::now();
    }
  } catch (const Error& error) {
    return finish_step(set, error);
  } catch (const std::exception& problem) {
    return finish_step(set, unexpected("running a named operation", problem));
  }
  if (!work) return finish_step(set, std::nullopt);
  {
    const Lock lock(mutex_);
    set->current = work;
    changed_.notify_all();
  }
  work->on_finish([self = shared_from_this(), set](const Work& ended_work) { self->ended(set, ended_work.error()); });
}

Error unexpected(const char* attempted, const std::exception& problem) {
  return Error{{.code = ErrorCode::system, .attempted = attempted, .cause = problem.what()}};
}

bool Engine::fill_eager(const Lock& /*lock*/, const SetState& set, Token& token) {
  const std::vector<Key>& batch = set.order->next();
  if (!set.has_all(batch)) return false;  // ended meanwhile
  std::byte* at = token.own.data() + sizeof token.head;
  if (batch.front().kind == Kind::all_gather) {
    const EagerRows rows = eager_rows(set.active.at(batch.front())->subject->tensors.front());
    std::memcpy(at, &rows, sizeof rows);
    return true;
  }
  std::size_t bytes = 0;
  for (const Key& key : batch) bytes += size_of(set.active.at(key)->subject->request.facts);
  if (bytes != set.order->eager()) return false;  // of another shape than what was learned
  for (const Key& key : batch) {
    for (const TensorView& tensor : set.active.at(key)->subject->tensors) {
      if (tensor.numel() > 0) std::memcpy(at, tensor.data(), tensor.size_bytes());
      at += tensor.size_bytes();
    }
  }
  return true;
}

/// How far is told as late as possible.
std::optional<Work> Engine::start_token(SetState& set, Token& token) {
  {
    const Lock lock(mutex_);
    token.since = Deadline::Clock::now();
    token.head = {.ready = static_cast<std::int64_t>(set.order->ready()),
                  .ends = set.ending ? 1 : 0,
                  .proof = set.order->proof()};
    token.own.resize(sizeof token.head + set.order->eager());
    if (token.head.ready > 0 && set.order->eager() > 0 && !fill_eager(lock, set, token)) {
      token.head.ready = 0;
      token.head.ends = 1;
    }
    std::memcpy(token.own.data(), &token.head, sizeof token.head);
    token.all.resize(token.own.size() * static_cast<std::size_t>(set.group.size()));
  }
  const auto view = [](Bytes& bytes) { return std::span{reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()}; };
  return set.group.all_gather(view(token.own), view(token.all), Deadline::after(limit_ + patience_));
}

bool Engine::gather_eager(const Lock& lock, SetState& set, const Token& token) {
  std::vector<EagerRows> given(static_cast<std::size_t>(set.group.size()));
  for (std::size_t rank = 0; rank < given.size(); ++rank) {
    std::memcpy(&given[rank], token.payload_of(rank), sizeof(EagerRows));
    if (given[rank].rows == EagerRows::kTooMany) return false;
  }
  const PendingPointer pending = set.active.at(set.order->take().front());
  pending->subject->results.push_back(gathered(pending->subject->tensors.front(), given));
  ++counts_.learned;
  record(lock, *pending, {.agreed = token.since, .started = token.since, .packed = token.since});
  finish(lock, *pending, std::nullopt);
  return true;
}

bool Engine::combine_eager(const Lock& lock, SetState& set, const Token& token) {
  if (set.order->next().front().kind == Kind::all_gather) return gather_eager(lock, set, token);
  const auto ranks = static_cast<std::size_t>(set.group.size());
  std::size_t offset = 0;
  std::vector<const void*> sources(ranks);
  for (const Key& key : set.order->take()) {
    const PendingPointer pending = set.active.at(key);
    const Subject& subject = *pending->subject;
    for (const TensorView& tensor : subject.tensors) {
      for (std::size_t rank = 0; rank < ranks; ++rank) sources[rank] = token.payload_of(rank) + offset;
      const collectives::Reduction reduction(tensor.dtype(), subject.request.facts.op, set.group.size());
      if (tensor.numel() > 0) reduction.combine(tensor.data(), sources, tensor.numel());
      offset += tensor.size_bytes();
    }
    ++counts_.learned;
    record(lock, *pending, {.agreed = token.since, .started = token.since, .packed = token.since});
    finish(lock, *pending, std::nullopt);
  }
  return true;
}

void Engine::ended(const SetPointer& set, const std::optional<Error>& error) {
  bool goes_on = false;
  {
    const Lock lock(mutex_);
    set->current.reset();
    goes_on = !error && set->running && set->running->execution;
  }
  goes_on ? drive(set) : finish_step(set, error);
  advance(set);
}

void Engine::finish_step(const SetPointer& set, const std::optional<Error>& error) {
  std::shared_ptr<Step> step;
  Lock lock(mutex_);
  step = std::move(set->running);
  set->running.reset();
  set->current.reset();
  if (step->execution) counts_.fused += step->execution->packed();
  for (const PendingPointer& pending : step->operations) {
    record(lock, *pending, step->times, step->execution && step->execution->packed() > 0,
           pending == step->operations.front());
    finish(lock, *pending, error);
  }
  const auto found = sets_.find(set->number);
  if (found == sets_.end() || found->second != set) return changed_.notify_all();  // removed: its end is no news
  std::optional<Error> failure = error;
  if (step->token && !error) {
    set->token = false;
    try {
      take_token(lock, *set, *step->token);
    } catch (const std::exception& problem) {
      failure = unexpected("following the learned order of named operations", problem);
    }
  }
  changed_.notify_all();
  if (!failure) return;
  set->failed = true;
  if (end_) return end_set(lock, *set, *end_);
  if (step->token && failure->code() == ErrorCode::peer_lost) {  // it may have left, which it tells by another way
    suspicion_ = {*failure, Deadline::after(kExplanation)};
    return star_.wake();
  }
  if (step->token && failure->code() == ErrorCode::timeout && set->order) {
    failure = Error{{.code = ErrorCode::timeout,
                     .attempted = name_of(set->order->next().front()),
                     .cause = failure->ranks().empty() ? failure->detail().cause
                                                       : format_ranks(failure->ranks()) + " did not submit it in time",
                     .ranks = failure->ranks(),
                     .hint = "submit it on all ranks of the set"}};
  }
  base::log(base::LogLevel::debug, "named operations end with the group of set {}", set->number);
  tell_end(lock, *failure);
  end_all(lock, *failure);
}

void Engine::take_batches(const Lock& lock, SetState& set, std::int64_t ready) {
  std::vector<PendingPointer> operations;
  std::vector<std::shared_ptr<Subject>> subjects;
  std::size_t bytes = 0;
  const auto push_gathered = [&] {
    if (operations.empty()) return;
    counts_.learned += operations.size();
    push(lock, set, std::exchange(operations, {}), std::exchange(subjects, {}));
    bytes = 0;
  };
  for (; ready > 0; --ready) {
    if (end_ && !set.has_all(set.order->next())) break;
    const std::vector<Key>& batch = set.order->take();
    std::size_t more = 0;
    for (const Key& key : batch) more += size_of(set.active.at(key)->subject->request.facts);
    const Request& first = set.active.at(batch.front())->subject->request;
    const bool fits = bytes + more <= set.fusion_bytes;
    if (!subjects.empty() && (!fits || !may_be_fused(subjects.front()->request, first))) push_gathered();
    bytes += more;
    for (const Key& key : batch) {
      operations.push_back(set.active.at(key));
      operations.back()->phase = Pending::Phase::running;
      subjects.push_back(operations.back()->subject);
    }
  }
  push_gathered();
}

void Engine::take_token(const Lock& lock, SetState& set, const Token& token) {
  std::int64_t ready = token.head.ready;
  bool ends = false;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(set.group.size()); ++rank) {
    const Token::Head head = token.head_of(rank);
    ready = std::min(ready, head.ready);
    ends = ends || head.ends != 0;
    if (head.proof == token.head.proof) continue;
    const Error error{{.code = ErrorCode::protocol,
                       .attempted = "following the learned order of named operations",
                       .cause = "ranks have reached different places in it",
                       .ranks = {set.group.global_ranks()[rank]}}};
    tell_end(lock, error);
    return end_all(lock, error);
  }
  if (ready > 0 && end_ && !set.has_all(set.order->next())) return end_set(lock, set, *end_);
  if (ready > 0 && set.order->eager() > 0 && combine_eager(lock, set, token)) --ready;
  take_batches(lock, set, ready);
  if (end_) return end_set(lock, set, *end_);
  ends ? leave_order(lock, set) : offer_token(lock, set);
}

}  // namespace ddp::named
