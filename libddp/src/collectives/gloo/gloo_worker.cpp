#include "collectives/gloo/gloo_worker.hpp"

#include <atomic>

#include "base/library_thread.hpp"

namespace ddp::collectives::gloo_backend {

class GlooWorker::GlooRequest final : public Request {
 public:
  explicit GlooRequest(GlooWorker& owner) : worker(owner) {}

  void post() noexcept override { worker.post(*this); }
  Outcome poll() noexcept override { return outcome.load(std::memory_order_acquire); }
  Failure failure() const override { return {.ranks = {}, .cause = {}, .native = native}; }
  void release() noexcept override {
    transfers.clear();
    worker.unused_.push_back(this);  // there was room for all when it was made
  }

  GlooWorker& worker;
  std::span<const Operation> operations;
  Deadline deadline{Deadline::Clock::time_point{}};
  std::vector<std::unique_ptr<Transfer>> transfers;
  std::string native;  ///< what Gloo said; final once outcome is
  std::atomic<Outcome> outcome{Outcome::running};
};

GlooWorker::GlooWorker(std::shared_ptr<GlooMesh> mesh) : mesh_(std::move(mesh)) {
  thread_ = base::start_thread([this] { run(); });
}

GlooWorker::~GlooWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    posted_.notify_all();
  }
  thread_.join();
  for (Waiter& waiter : waiters_) waiter.thread.join();
}

Request& GlooWorker::init(std::span<const Operation> operations, Deadline deadline) {
  if (unused_.empty()) {
    unused_.reserve(requests_.size() + 1);
    unused_.push_back(requests_.emplace_back(std::make_unique<GlooRequest>(*this)).get());
  }
  GlooRequest& request = *unused_.back();
  unused_.pop_back();
  request.operations = operations;
  request.deadline = deadline;
  request.native.clear();
  request.outcome = Outcome::running;
  return request;
}

void GlooWorker::post(GlooRequest& request) {
  if (!request.operations.front().is_transfer()) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(&request);
    posted_.notify_one();
    return;
  }
  join_finished_waiters();
  try {
    for (const Operation& operation : request.operations) {
      request.transfers.push_back(start_transfer(mesh_, operation));
    }
    auto done = std::make_shared<std::atomic<bool>>(false);
    waiters_.push_back({base::start_thread([this, &request, done] {
                          wait_for_transfers(request);
                          *done = true;
                        }),
                        done});
  } catch (const std::exception& problem) {
    finish(request, Outcome::peers_failed, problem.what());
  }
}

void GlooWorker::run() {
  for (;;) {
    GlooRequest* request = nullptr;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      request = queue_.front();
      queue_.pop_front();
    }
    execute(*request);
  }
}

void GlooWorker::execute(GlooRequest& request) {
  try {
    for (const Operation& operation : request.operations) run_collective(mesh_, operation, request.deadline);
    finish(request, Outcome::ok, {});
  } catch (const std::exception& problem) {
    finish(request, Outcome::peers_failed, problem.what());
  }
}

void GlooWorker::wait_for_transfers(GlooRequest& request) {
  Outcome outcome = Outcome::ok;
  std::string cause;
  for (const auto& transfer : request.transfers) {
    try {
      transfer->wait(request.deadline);
    } catch (const std::exception& problem) {
      if (outcome == Outcome::ok) cause = problem.what();
      outcome = Outcome::peers_failed;
    }
  }
  finish(request, outcome, std::move(cause));
}

void GlooWorker::finish(GlooRequest& request, Outcome outcome, std::string cause) {
  const std::lock_guard lock(mutex_);
  request.native = std::move(cause);
  request.outcome.store(outcome != Outcome::ok && aborted_ ? Outcome::aborted : outcome, std::memory_order_release);
  ++finishes_;
  finished_.notify_all();
}

void GlooWorker::abort() noexcept {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  mesh_->abort();
}

void GlooWorker::rest(std::chrono::microseconds limit) {
  std::unique_lock lock(mutex_);
  finished_.wait_for(lock, limit, [&, before = finishes_] { return finishes_ != before; });
}

void GlooWorker::join_finished_waiters() {
  waiters_.remove_if([](Waiter& waiter) {
    if (!*waiter.done) return false;
    waiter.thread.join();
    return true;
  });
}

}  // namespace ddp::collectives::gloo_backend
