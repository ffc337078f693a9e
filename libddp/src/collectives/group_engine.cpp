#include "collectives/group_engine.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/env_table.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"

namespace ddp::collectives {
namespace {

// How long before an operation's deadline an investigation starts: a quarter of its time, at most this.
constexpr std::chrono::milliseconds kLongestReserve{2000};
// While an operation waits, those that it waits for are looked after: first after this, then less and less often.
constexpr std::chrono::milliseconds kFirstProbe{1000};
// After an interruption by something more urgent.
constexpr std::chrono::milliseconds kProbeAgain{500};

Error closed(const Operation& operation) {
  return Error{{.code = ErrorCode::aborted,
                .attempted = operation.description(),
                .cause = "the process group was closed while it was under way",
                .native = {},
                .ranks = {},
                .hint = "wait for all operations before the group goes away"}};
}

}  // namespace

GroupEngine::GroupEngine(GroupMembers members, std::string backend_name, std::unique_ptr<Backend> backend,
                         ConnectOptions connect, std::chrono::milliseconds timeout)
    : members_(std::move(members)),
      backend_name_(std::move(backend_name)),
      connect_(std::move(connect)),
      timeout_(timeout),
      compare_arguments_(base::Environment::process().boolean("DDP_CHECK_COLLECTIVES") && members_.size() > 1),
      backend_(std::move(backend)),
      detector_(members_, log_, [this] {
        const std::lock_guard lock(mutex_);
        watchdog_wakes_.notify_all();
      }) {
  worker_ = base::start_thread([this] { run_tasks(); });
  watchdog_ = base::start_thread([this] { watch(); });
}

GroupEngine::~GroupEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    task_ready_.notify_all();
    watchdog_wakes_.notify_all();
  }
  watchdog_.join();
  worker_.join();
  for (Waiter& waiter : waiters_) waiter.thread.join();
}

Work GroupEngine::submit(Operation operation, std::optional<Deadline> deadline) {
  if (const auto verdict = detector_.verdict()) throw *verdict;
  const Deadline limit = deadline.value_or(Deadline::after(timeout_));
  const auto reserve = std::min(limit.remaining() / 4, kLongestReserve);
  const std::lock_guard lock(mutex_);
  if (!operation.is_transfer()) operation.sequence = ++sequence_;
  log_.issued(operation);
  auto state = std::make_shared<WorkState>(operation.description(), limit);
  auto task = std::make_shared<Task>(Task{.operation = std::move(operation),
                                          .deadline = limit,
                                          .investigate_at = Deadline{limit.when() - reserve},
                                          .state = state,
                                          .next_probe = Deadline::after(kFirstProbe),
                                          .probe_interval = kFirstProbe,
                                          .transfer = nullptr});
  queue_.push_back(task);
  unfinished_.push_back(task);
  task_ready_.notify_one();
  // Not for every task: a useless wake-up costs a small operation a tenth of its time.
  if (earlier(task->investigate_at, task->next_probe) < watchdog_looks_) watchdog_wakes_.notify_all();
  return Work{std::move(state)};
}

void GroupEngine::finish(const TaskPtr& task, std::optional<Error> error) {
  {
    const std::lock_guard lock(mutex_);
    unfinished_.remove(task);
  }
  log_.finished(task->operation);
  task->state->finish(std::move(error));
}

void GroupEngine::run_tasks() {
  for (;;) {
    TaskPtr task;
    {
      std::unique_lock lock(mutex_);
      task_ready_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      task = queue_.front();
      queue_.pop_front();
      // transfers end by their own deadlines, which the watchdog enforces
      if (!task->operation.is_transfer()) transfers_done_.wait(lock, [&] { return transfers_ == 0; });
    }
    execute(task);
  }
}

void GroupEngine::execute(const TaskPtr& task) {
  try {
    if (auto verdict = detector_.verdict()) {
      finish(task, std::move(verdict));
    } else if (task->operation.is_transfer()) {
      join_finished_waiters();
      task->transfer = backend_->start(task->operation);
      {
        const std::lock_guard lock(mutex_);
        ++transfers_;
      }
      auto done = std::make_shared<std::atomic<bool>>(false);
      try {
        waiters_.push_back({base::start_thread([this, task, done] {
                              wait_for_transfer(task);
                              *done = true;
                            }),
                            done});
      } catch (...) {
        const std::lock_guard lock(mutex_);
        --transfers_;
        throw;
      }
    } else {
      if (compare_arguments_) {
        if (const auto mismatch = compare_arguments(*task)) return finish(task, explain(*task, *mismatch));
      }
      backend_->run(task->operation, task->deadline);
      finish(task, std::nullopt);
    }
  } catch (const std::exception& problem) {
    finish(task, explain(*task, communication_failure(task->operation, problem.what())));
  }
}

std::optional<Error> GroupEngine::compare_arguments(const Task& task) {
  std::vector<std::int64_t> own{static_cast<std::int64_t>(task.operation.fingerprint())};
  std::vector<std::int64_t> all(members_.global_ranks.size());
  Operation question;
  question.kind = OperationKind::all_gather;
  question.dtype = DType::int64;
  question.count = 1;
  question.input = own;
  question.output = all;
  // the same on all ranks whatever they call, and never that of an operation of the user
  question.sequence = task.operation.sequence | (std::uint64_t{1} << 63U);
  backend_->run(question, task.deadline);
  if (std::all_of(all.begin(), all.end(), [&](std::int64_t other) { return other == own[0]; })) return std::nullopt;
  return Error{{.code = ErrorCode::mismatch,
                .attempted = task.operation.description(),
                .cause = "the ranks called different things",
                .native = {},
                .ranks = {},
                .hint = "every rank must call the same collectives in the same order"}};
}

void GroupEngine::wait_for_transfer(const TaskPtr& task) {
  std::optional<Error> error;
  try {
    task->transfer->wait(task->deadline);
  } catch (const std::exception& problem) {
    error = explain(*task, communication_failure(task->operation, problem.what()));
  }
  task->transfer.reset();
  {
    const std::lock_guard lock(mutex_);
    if (--transfers_ == 0) transfers_done_.notify_all();
  }
  finish(task, std::move(error));
}

void GroupEngine::join_finished_waiters() {
  waiters_.remove_if([](Waiter& waiter) {
    if (!*waiter.done) return false;
    waiter.thread.join();
    return true;
  });
}

Error GroupEngine::explain(const Task& task, const Error& failure) {
  if (const auto verdict = detector_.verdict()) return *verdict;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return closed(task.operation);
  }
  const auto error = detector_.investigate(
      task.operation, failure,
      [&] {
        const std::lock_guard lock(mutex_);
        return !stopping_;
      },
      earlier(task.deadline, Deadline::after(members_.peer_timeout)));
  if (!error) return closed(task.operation);
  const std::lock_guard lock(mutex_);
  watchdog_wakes_.notify_all();  // to abort the rest, which cannot succeed either
  return *error;
}

void GroupEngine::watch() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool closing = stopping_ && !unfinished_.empty();
    if (!aborted_ && (closing || detector_.verdict())) {
      aborted_ = true;
      lock.unlock();
      if (closing) {
        base::log(base::LogLevel::warning, "group '{}' is closed while operations are under way; they are aborted",
                  members_.name);
      }
      backend_->abort();
      lock.lock();
      continue;
    }
    if (stopping_) return;
    TaskPtr due;
    bool collective_seen = false;
    Deadline wake = Deadline::after(std::chrono::hours(1));
    for (const TaskPtr& task : unfinished_) {
      if (aborted_) break;  // their threads are finishing them
      if (task->investigate_at.expired()) {
        due = task;
        break;
      }
      wake = earlier(wake, task->investigate_at);
      if (collective_seen) continue;  // those behind a collective have not started
      collective_seen = !task->operation.is_transfer();
      if (!due && task->next_probe.expired()) due = task;
      wake = earlier(wake, task->next_probe);
    }
    if (due) {
      lock.unlock();
      check(due);
      due.reset();
      lock.lock();
    } else {
      watchdog_looks_ = wake;
      watchdog_wakes_.wait_until(lock, wake.when());
    }
  }
}

bool GroupEngine::deadline_near() const {
  return std::any_of(unfinished_.begin(), unfinished_.end(),
                     [](const TaskPtr& task) { return task->investigate_at.expired(); });
}

void GroupEngine::check(const TaskPtr& task) {
  if (task->investigate_at.expired()) {
    const auto still_running = [&] {
      const std::lock_guard lock(mutex_);
      return !stopping_ && !task->state->done();
    };
    detector_.investigate(task->operation, std::nullopt, still_running, task->deadline);
    return;
  }
  bool interrupted = false;
  if (members_.channel) {
    detector_.watch(task->operation, [&] {
      const std::lock_guard lock(mutex_);
      interrupted = stopping_ || task->state->done() || deadline_near();
      return !interrupted;
    });
  }
  task->probe_interval = std::min(task->probe_interval * 2, longest_probe_interval(members_.peer_timeout));
  task->next_probe = Deadline::after(interrupted ? kProbeAgain : task->probe_interval);
}

}  // namespace ddp::collectives
