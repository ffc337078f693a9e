#include "collectives/progress_thread.hpp"

#include <pthread.h>

#include <algorithm>

#include "base/library_thread.hpp"
#include "collectives/wait_ladder.hpp"

namespace ddp::collectives {
namespace {

using std::chrono::microseconds;

constexpr microseconds kShortestLook{200};
constexpr microseconds kLongestLook{1000};
// Looks in a row that find all groups idle, before it sleeps deeply: some 50 ms.
constexpr int kIdleLooks = 50;
// By then the thread has given up a removed group, unless a callback blocks it.
constexpr std::chrono::seconds kLongestRemoval{5};

std::atomic<ProgressThread*> current{nullptr};

}  // namespace

ProgressThread& ProgressThread::instance() {
  // never destroyed: groups may live until the end of the process; a forked child has none of the parent's threads
  static const int registered = [] {
    current = new ProgressThread(Duty::all);
    return ::pthread_atfork(nullptr, nullptr, [] { current = nullptr; });
  }();
  static_cast<void>(registered);
  ProgressThread* known = current.load();
  if (known == nullptr) {
    auto* fresh = new ProgressThread(Duty::all);
    if (current.compare_exchange_strong(known, fresh)) return *fresh;
    delete fresh;
  }
  return *known;
}

void ProgressThread::add(std::shared_ptr<GroupEngine> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
  ++version_;
  if (running_) {
    deep_ = false;
    wakes_.notify_all();
    return;
  }
  if (thread_.joinable()) thread_.join();  // at its end
  try {
    thread_ = base::start_thread([this, self = weak_from_this().lock()] { run(); });
  } catch (...) {
    groups_.pop_back();
    throw;
  }
  running_ = true;
}

void ProgressThread::remove(const GroupEngine& group) {
  std::unique_lock lock(mutex_);
  std::erase_if(groups_, [&](const auto& known) { return known.get() == &group; });
  const std::uint64_t version = ++version_;
  deep_ = false;
  wakes_.notify_all();
  if (!running_ || thread_.get_id() == std::this_thread::get_id()) return;
  const bool done = renewed_.wait_for(lock, kLongestRemoval, [&] { return seen_ >= version || !running_; });
  if (done && !running_ && groups_.empty() && thread_.joinable()) thread_.join();
  if (!done && duty_ == Duty::one && thread_.joinable()) thread_.detach();  // it hangs, and has this object as its own
}

void ProgressThread::look_now() noexcept {
  const std::lock_guard lock(mutex_);
  look_now_ = true;
  deep_ = false;
  wakes_.notify_all();
}

void ProgressThread::wake() noexcept {
  wake_count_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  wakes_.notify_all();
}

ProgressThread::Counts ProgressThread::counts() const noexcept {
  return {.wakes = wake_count_.load(), .looks = look_count_.load(), .deep_sleeps = deep_count_.load()};
}

bool ProgressThread::renew(Groups& groups) {
  const std::lock_guard lock(mutex_);
  look_now_ = false;
  if (seen_ == version_) return true;
  groups = groups_;
  seen_ = version_;
  if (groups.empty()) running_ = false;
  renewed_.notify_all();
  return running_;
}

void ProgressThread::sleep(microseconds limit) {
  std::unique_lock lock(mutex_);
  wakes_.wait_for(lock, limit, [&] { return look_now_ || seen_ != version_; });
}

bool ProgressThread::sleep_deeply(const Groups& groups) {
  deep_ = true;  // first: a thread that starts an operation from now on sees it
  const auto idle = [this](const auto& group) { return carry_on(*group) == GroupEngine::Activity::idle; };
  if (!std::all_of(groups.begin(), groups.end(), idle)) {
    deep_ = false;
    return false;
  }
  deep_count_.fetch_add(1, std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  wakes_.wait(lock, [&] { return !deep_ || look_now_ || seen_ != version_; });
  deep_ = false;
  return true;
}

GroupEngine::Activity ProgressThread::carry_on(GroupEngine& group) {
  return duty_ == Duty::all && group.life().has_own_thread() ? group.activity() : group.progress();
}

void ProgressThread::run() {
  Groups groups;
  // Without spinning: this thread has no processor of its own. Its operations are long, so it yields little: a rest
  // ends with what it waits for, and leaves the processor to ranks that have something to do.
  YieldBudget budget;
  WaitLadder ladder(false, WaitLadder::kFirstRest, &budget);
  microseconds interval = kShortestLook;
  int idle_looks = 0;
  while (renew(groups)) {
    look_count_.fetch_add(1, std::memory_order_relaxed);
    const auto now = Deadline::Clock::now();
    bool in_use = false;
    bool moved = false;
    GroupEngine* carried_on = nullptr;
    for (const auto& group : groups) {
      if (duty_ == Duty::all) group->life().look(now);
      const auto activity = carry_on(*group);
      in_use = in_use || activity != GroupEngine::Activity::idle;
      moved = moved || activity == GroupEngine::Activity::advanced;
      if (activity >= GroupEngine::Activity::polled) carried_on = group.get();
    }
    if (in_use) idle_looks = 0;
    if (carried_on != nullptr) {
      interval = kShortestLook;
      if (moved) ladder.reset();
      const auto limit = ladder.pause();
      if (limit == microseconds::zero()) continue;
      carried_on->lanes().rest(carried_on->lanes().all().front(), limit);
      ladder.rested();
      continue;
    }
    ladder.reset();
    if (++idle_looks > kIdleLooks && sleep_deeply(groups)) {
      interval = kShortestLook;
      idle_looks = 0;
      continue;
    }
    sleep(interval);
    interval = std::min(interval * 2, kLongestLook);
  }
}

}  // namespace ddp::collectives
