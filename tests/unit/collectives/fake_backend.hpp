// A backend without communication: tests decide when its operations end, and see in which order they began.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/backend.hpp"

namespace ddp::test {

using collectives::Backend;
using collectives::Transfer;
using ddp::Operation;

/// The test's end of it. Thread-safe, but for effect.
class BackendControl {
 public:
  /// What a collective does when it succeeds; set before the first one.
  std::function<void(const Operation&)> effect = [](const Operation&) {};

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
  /// Makes the operation of this name fail.
  void fail(const std::string& name) {
    change([&] { failing_.insert(name); });
  }

  std::vector<std::string> events() const {
    const std::lock_guard lock(mutex_);
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

  /// The backend's end: one operation from its beginning to its end. Like a real library, it does not look at
  /// deadlines.
  void pass(const std::string& name) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return !holding_ || released_.contains(name) || failing_.contains(name) || aborts_ > 0; });
    if (aborts_ > 0) throw std::runtime_error("the connection was aborted");
    if (failing_.contains(name)) throw std::runtime_error("the connection broke");
  }
  void record(const std::string& event) {
    change([&] { events_.push_back(event); });
  }
  void abort() {
    change([&] { ++aborts_; });
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
  std::set<std::string> released_;
  std::set<std::string> failing_;
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

  bool serves(DeviceType device) const noexcept override { return device == DeviceType::cpu; }
  Bytes address() const override { return {}; }
  void connect(const std::vector<Bytes>& /*unused*/, Deadline /*immediate*/) override {}
  void run(const Operation& operation, Deadline /*ignored*/) override {
    const std::string name = name_of(operation);
    control_->record("begin " + name);
    control_->pass(name);
    control_->effect(operation);
    control_->record("end " + name);
  }
  std::unique_ptr<Transfer> start(const Operation& operation) override {
    const std::string name = name_of(operation);
    control_->record("post " + name);
    control_->pass("post " + name);
    return std::make_unique<FakeTransfer>(control_, name);
  }
  void abort() noexcept override { control_->abort(); }

 private:
  class FakeTransfer final : public Transfer {
   public:
    FakeTransfer(std::shared_ptr<BackendControl> control, std::string name)
        : control_(std::move(control)), name_(std::move(name)) {}
    void wait(Deadline /*ignored*/) override {
      control_->pass(name_);
      control_->record("end " + name_);
    }

   private:
    std::shared_ptr<BackendControl> control_;
    std::string name_;
  };

  std::shared_ptr<BackendControl> control_;
};

}  // namespace ddp::test
