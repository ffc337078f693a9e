// What the groups of an Engine's sets do: one step after the other in each, tokens of the learned order among them.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "named/comparison.hpp"
#include "named/engine.hpp"

namespace ddp::named {

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
  set.queue.push_back(std::move(step));
  changed_.notify_all();
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
    if (step->execution) work = step->execution->next();
  } catch (const Error& error) {
    return finish_step(set, error);
  }
  if (!work) return finish_step(set, std::nullopt);
  {
    const Lock lock(mutex_);
    set->current = work;
    changed_.notify_all();
  }
  work->on_finish([self = shared_from_this(), set](const Work& ended_work) { self->ended(set, ended_work.error()); });
}

/// How far is told as late as possible.
std::optional<Work> Engine::start_token(SetState& set, Token& token) {
  {
    const Lock lock(mutex_);
    token.own = {static_cast<std::int64_t>(set.order->ready()), set.ending ? 1 : 0, set.order->proof()};
    token.all.resize(token.own.size() * static_cast<std::size_t>(set.group.size()));
  }
  return set.group.all_gather(token.own, token.all);
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
  for (const PendingPointer& pending : step->operations) finish(lock, *pending, error);
  if (step->token) {
    set->token = false;
    error ? end_set(lock, *set, *error) : take_token(lock, *set, *step->token);
  }
  changed_.notify_all();
  if (!error || end_) return;
  base::log(base::LogLevel::debug, "named operations end with the group of set {}", set->number);
  tell_end(lock, *error);
  end_all(lock, *error);
}

void Engine::take_token(const Lock& lock, SetState& set, const Token& token) {
  std::int64_t ready = token.own[Token::ready];
  bool ends = false;
  for (std::size_t at = 0; at < token.all.size(); at += Token::fields) {
    ready = std::min(ready, token.all[at + Token::ready]);
    ends = ends || token.all[at + Token::ends] != 0;
    if (token.all[at + Token::proof] == token.own[Token::proof]) continue;
    const Error error{{.code = ErrorCode::protocol,
                       .attempted = "following the learned order of named operations",
                       .cause = "ranks have come to different places in it",
                       .ranks = {set.group.global_ranks()[at / Token::fields]}}};
    tell_end(lock, error);
    return end_all(lock, error);
  }
  for (; ready > 0; --ready) {
    std::vector<PendingPointer> operations;
    std::vector<std::shared_ptr<Subject>> subjects;
    for (const Key& key : set.order->take()) {
      operations.push_back(set.active.at(key));
      operations.back()->phase = Pending::Phase::running;
      subjects.push_back(operations.back()->subject);
    }
    counts_.learned += operations.size();
    push(lock, set, std::move(operations), std::move(subjects));
  }
  if (end_) return end_set(lock, set, *end_);
  ends ? leave_order(lock, set) : offer_token(lock, set);
}

}  // namespace ddp::named
