// What each rank of the self-test does once it has joined the job: every service of libddp once, with results that it
// can foretell.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include <ddp/cpu_set.hpp>
#include <ddp/process_group.hpp>
#include <ddp/world.hpp>

#include "selftest/rank_result.hpp"

namespace ddp::selftest {

class Checks {
 public:
  /// @param given the processors on which this process could run before World::init, which may bind it.
  /// @param limit of each check.
  Checks(World& world, CpuSet given, std::chrono::seconds limit);

  /// Collective. Runs all checks, also after one has failed: other ranks may be waiting in them.
  /// @param expect_store a job without the store of torch.distributed is a failure.
  void run(bool expect_store);

  const std::vector<Finding>& findings() const { return findings_; }
  /// Whether the launcher's key-value store can still be used: not once a fence has failed.
  bool store_usable() const { return store_usable_; }
  /// Whether the store of torch.distributed was there and was tried.
  bool store_checked() const { return store_checked_; }

 private:
  template <class Check>
  void attempt(const char* name, Check check);
  void exchange();
  void collectives();
  void pairs();
  void binding();
  void torch_store(bool expected);

  Deadline deadline() const { return Deadline::after(limit_); }

  World& world_;
  CpuSet given_;
  std::chrono::seconds limit_;
  std::optional<ProcessGroup> group_;
  std::vector<Finding> findings_;
  bool store_usable_ = true;
  bool store_checked_ = false;
};

}  // namespace ddp::selftest
