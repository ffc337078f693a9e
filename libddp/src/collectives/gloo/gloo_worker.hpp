// Makes Gloo's blocking calls on threads of its own, so that a group can start and poll them.
#pragma once

#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "collectives/gloo/gloo_operations.hpp"

namespace ddp::collectives::gloo_backend {

/// A thread executes collectives in the order in which they are posted. Each send and receive has one that waits for
/// it: Gloo cannot wait for several at once without ending them all.
class GlooWorker {
 public:
  explicit GlooWorker(std::shared_ptr<GlooMesh> mesh);
  GlooWorker(const GlooWorker&) = delete;
  GlooWorker& operator=(const GlooWorker&) = delete;
  /// Waits for what is under way.
  ~GlooWorker();

  Request& init(std::span<const Operation> operations, Deadline deadline);
  /// Blocks for a millisecond, as Gloo knows no other way. What is under way ends soon after.
  void abort() noexcept;
  /// Sleeps until an operation ends.
  void rest(std::chrono::microseconds limit);

 private:
  class GlooRequest;

  void run();
  void execute(GlooRequest& request);
  void post(GlooRequest& request);
  void wait_for_transfers(GlooRequest& request);
  void finish(GlooRequest& request, Outcome outcome, std::string cause);
  void join_finished_waiters();

  std::shared_ptr<GlooMesh> mesh_;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable posted_;
  std::condition_variable finished_;
  std::uint64_t finishes_ = 0;
  bool stopping_ = false;
  bool aborted_ = false;
  std::deque<GlooRequest*> queue_;

  /// The group's: it makes and polls requests from one thread at a time.
  std::deque<std::unique_ptr<GlooRequest>> requests_;
  std::vector<GlooRequest*> unused_;
  struct Waiter {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  std::list<Waiter> waiters_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ddp::collectives::gloo_backend
