// Looks into operations that take long, come near their deadline or have failed. What must ask other ranks, and so
// takes time, runs on a thread that exists only meanwhile.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include <ddp/work.hpp>

#include "collectives/failure_detector.hpp"

namespace ddp::collectives {

class GroupDriver;

/// What is to be looked into.
struct Concern {
  enum class Kind { failure, deadline, probe };
  Kind kind;
  Work work;
  std::optional<Error> failure{};  ///< what its backend said of a failure; none if that its time ran out
  std::size_t operation = 0;       ///< which of several
  std::string times{};             ///< when it was issued and began, of one on a device
};

class GroupWatch {
 public:
  /// @param members, @param log must outlive this object.
  GroupWatch(GroupDriver& driver, const GroupMembers& members, const OperationLog& log);
  GroupWatch(const GroupWatch&) = delete;
  GroupWatch& operator=(const GroupWatch&) = delete;
  ~GroupWatch();

  /// Why the group has failed, once it has.
  std::optional<Error> verdict() const { return detector_->verdict(); }

  /// This rank closes the group while @p work is under way: the others, who may be in it, learn that it will not end.
  void tell_of_close(const WorkState& work) noexcept;
  /// Ends the group for all members with @p error, unless it has failed already.
  void end_group(const Error& error) noexcept;
  /// By the progress thread, again and again: starts an inquiry if there is a concern and none is under way.
  void look(Deadline::Clock::time_point now);
  /// Waits for the end of the inquiry, and answers other ranks no more. The group is closing, so it ends soon.
  void stop() noexcept;

 private:
  void inquire();
  void look_into(const Concern& concern);

  GroupDriver& driver_;
  const GroupMembers& members_;
  std::unique_ptr<FailureDetector> detector_;
  std::mutex mutex_;  ///< guards what follows
  bool stopped_ = false;
  std::thread thread_;
  std::atomic<bool> inquiring_{false};
};

}  // namespace ddp::collectives
