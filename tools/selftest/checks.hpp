// The self-test's checks on each rank after wire-up: every service of libddp once, with predictable results.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include <ddp/cpu_set.hpp>
#include <ddp/process_group.hpp>
#include <ddp/world.hpp>

#include "selftest/verdict.hpp"

namespace ddp::selftest {

class Checks {
 public:
  /// @param given processors this process could use before World::init, which may bind it.
  /// @param limit of each check.
  Checks(World& world, CpuSet given, std::chrono::seconds limit);

  /// Collective. Runs all checks, even after a failure: other ranks may be waiting in them.
  /// @param expect_store fail without a store of torch.distributed.
  void run(bool expect_store);

  const std::vector<Finding>& findings() const { return findings_; }
  /// False after a failed fence: the launcher's key-value store is then unusable.
  bool store_usable() const { return store_usable_; }
  /// Whether a store of torch.distributed was found and tried.
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
