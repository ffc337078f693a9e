// Asks the members of a group why an operation does not finish, and spreads the verdict, so that all survivors report
// the same cause.
//
// A local failure says little: a closed connection may belong to a rank that died, or to one that gave up because of a
// third. So a rank asks all others before it reports, and sends its verdict to those that answer before it closes its
// own connections. Without a failure this costs nothing.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/failure_verdict.hpp"
#include "collectives/operation_log.hpp"

namespace ddp::collectives {

/// Thread-safe.
class FailureDetector {
 public:
  static constexpr std::chrono::milliseconds kLeastTime{500};

  /// @param members, @param log must outlive this object.
  /// @param on_verdict called, on the peer channel's thread, when another member says that the group has failed.
  FailureDetector(const GroupMembers& members, const OperationLog& log, std::function<void()> on_verdict);
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;
  ~FailureDetector();

  /// Why the group has failed, once it has.
  std::optional<Error> verdict() const;

  /// Finds the cause, makes it the verdict unless there is one already, and tells the others. Returns the verdict, or
  /// nothing when the operation has finished meanwhile.
  /// @param local_failure of judge().
  /// @param still_running whether the operation is still under way.
  /// @param deadline by which it should have returned, but at least kLeastTime from now: with less, members without
  /// time to
  ///        answer would look dead.
  std::optional<Error> investigate(const Operation& operation, const std::optional<Error>& local_failure,
                                   const std::function<bool()>& still_running, Deadline deadline);

  /// Whether the next rank has called something else as collective number @p operation.sequence, or knows that the
  /// group has failed. If any two ranks differ, so do some neighbours, so one question is enough. False when there is
  /// no answer.
  bool neighbour_disagrees(const Operation& operation, Deadline deadline) const;

 private:
  Bytes answer(std::span<const std::byte> body);
  std::vector<MemberReply> ask_all(std::uint64_t sequence, Deadline deadline) const;
  void tell(const Error& error, const std::vector<MemberReply>& members, Deadline deadline) const;
  Error settle(const Error& error);

  const GroupMembers& members_;
  const OperationLog& log_;
  const std::function<void()> on_verdict_;
  const std::string service_;
  std::mutex investigation_;  ///< one at a time
  mutable std::mutex mutex_;  ///< guards verdict_
  std::optional<Error> verdict_;
};

}  // namespace ddp::collectives
