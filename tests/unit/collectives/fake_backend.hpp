// A backend without communication: tests decide when its operations end, and see in which order they began.
#pragma once

#include <condition_variable>

#include <ddp/backend.hpp>

#include "collectives/group_engine.hpp"

namespace ddp::test {

using ddp::Operation;

/// The test's end of it. Thread-safe, but for what is to be set before the first operation.
class BackendControl {
 public:
  /// What a collective does when it succeeds.
  std::function<void(const Operation&)> effect = [](const Operation&) {};
  BackendTraits traits{.serves_cpu = true,
                       .serves_cuda = false,
                       .completes_inline = true,
                       .needs_progress = true,
                       .stream_ordered = false,
                       .detects_peer_death = false,
                       .concurrent_collectives = 1};
  /// Polls in vain before anything ends.
  int polls_needed = 0;
  /// How often a request must be asked until it can order a stream.
  int orders_needed = 0;
  /// Whether what was posted has begun.
  std::atomic<bool> starts{true};
  /// Aborted operations go on.
  bool ignores_abort = false;

  /// From now on, what begins does not end before it is released.
  void hold() {
    change([&] { holding_ = true; });
  }
  /// Releases what is held, and stops holding.
  void release() {
    change([&] { holding_ = false; });
  }
  void release(const std::string& name) {
    change([&] { released_.insert(name); });
  }
  /// Makes the operation of this name end like this.
  void fail(const std::string& name, Outcome outcome = Outcome::peers_failed,
            Failure failure = {.cause = "the connection broke"}) {
    change([&] { failing_[name] = {outcome, std::move(failure)}; });
  }
  /// Makes Backend::init throw for the operation of this name.
  void refuse(const std::string& name) {
    change([&] { refused_.insert(name); });
  }

  std::vector<std::string> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  /// The same once there are @p count, or at @p deadline. What a call starts may be posted by another thread that
  /// drives the group just then, a moment after the call has returned.
  std::vector<std::string> events(std::size_t count, Deadline deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.when(), [&] { return events_.size() >= count; });
    return events_;
  }
  bool saw(const std::string& event) const {
    const auto all = events();
    return std::find(all.begin(), all.end(), event) != all.end();
  }
  /// Waits until @p event has happened; false at the deadline.
  bool wait_for(const std::string& event, Deadline deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.when(),
                               [&] { return std::find(events_.begin(), events_.end(), event) != events_.end(); });
  }
  int aborts() const {
    const std::lock_guard lock(mutex_);
    return aborts_;
  }

  /// Requests that were given back.
  int releases() const {
    const std::lock_guard lock(mutex_);
    return releases_;
  }

  // the backend's end

  /// How an operation that has begun stands.
  Outcome look(const std::string& name, Failure& failure) const {
    const std::lock_guard lock(mutex_);
    if (aborts_ > 0 && !ignores_abort) return Outcome::aborted;
    const auto fails = failing_.find(name);
    if (fails != failing_.end()) {
      failure = fails->second.second;
      return fails->second.first;
    }
    return holding_ && !released_.contains(name) ? Outcome::running : Outcome::ok;
  }
  void check(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    if (refused_.contains(name)) throw std::runtime_error("the backend has no room");
  }
  void record(const std::string& event) {
    change([&] { events_.push_back(event); });
  }
  void abort() {
    change([&] { ++aborts_; });
  }
  void released() {
    change([&] { ++releases_; });
  }
  void rest(std::chrono::microseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit);
  }

 private:
  template <class Change>
  void change(Change&& apply) {
    const std::lock_guard lock(mutex_);
    apply();
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool holding_ = false;
  int aborts_ = 0;
  int releases_ = 0;
  std::set<std::string> released_;
  std::set<std::string> refused_;
  std::map<std::string, std::pair<Outcome, Failure>> failing_;
  std::vector<std::string> events_;
};

/// "all_reduce 3" for a collective, "send tag 7" for a transfer.
inline std::string name_of(const Operation& operation) {
  std::string name(to_string(operation.kind));
  return operation.is_transfer() ? name + " tag " + std::to_string(operation.tag)
                                 : name + " " + std::to_string(operation.sequence);
}

class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(std::shared_ptr<BackendControl> control) : control_(std::move(control)) {}
  ~FakeBackend() override { control_->record("destroyed"); }

  const BackendTraits& traits() const noexcept override { return control_->traits; }
  Bytes address() const override { return {}; }
  void connect(const std::vector<Bytes>& /*unused*/, Deadline /*immediate*/) override {}
  Request& init(std::span<const Operation> operations, Deadline /*ignored*/) override {
    control_->check(name_of(operations.front()));
    return requests_.emplace_back(*control_, operations);
  }
  void abort() noexcept override { control_->abort(); }
  void close(Deadline /*immediate*/) noexcept override { control_->record("close"); }
  void rest(std::chrono::microseconds limit) noexcept override { control_->rest(limit); }

 private:
  /// Records "begin" of a collective, "post" of a transfer, and "end" of each.
  class FakeRequest final : public Request {
   public:
    FakeRequest(BackendControl& control, std::span<const Operation> operations)
        : control_(control), operations_(operations), polls_(control.polls_needed), orders_(control.orders_needed) {}
    void post() noexcept override {
      for (const Operation& operation : operations_) {
        control_.record((operation.is_transfer() ? "post " : "begin ") + name_of(operation));
      }
    }
    Outcome poll() noexcept override {
      if (polls_-- > 0) return Outcome::running;
      polls_ = 0;
      for (const Operation& operation : operations_) {
        const Outcome outcome = control_.look(name_of(operation), failure_);
        if (outcome != Outcome::ok) return outcome;
      }
      for (const Operation& operation : operations_) {
        if (!operation.is_transfer()) control_.effect(operation);
        control_.record("end " + name_of(operation));
      }
      return Outcome::ok;
    }
    Failure failure() const override { return failure_; }
    bool order(const Stream& stream) override {
      control_.record("order " + name_of(operations_.front()) + " " + std::to_string(stream.device.index));
      return orders_ == 0 || --orders_ == 0;
    }
    bool started() const noexcept override { return control_.starts; }
    void release() noexcept override { control_.released(); }

   private:
    BackendControl& control_;
    std::span<const Operation> operations_;
    int polls_;
    int orders_;
    Failure failure_;
  };

  std::shared_ptr<BackendControl> control_;
  std::deque<FakeRequest> requests_;
};

/// The backends of a group that has only this one.
inline std::vector<collectives::GroupBackend> fake_backends(const std::shared_ptr<BackendControl>& control) {
  std::vector<collectives::GroupBackend> backends;
  backends.push_back({"fake", std::make_unique<FakeBackend>(control)});
  return backends;
}

}  // namespace ddp::test
