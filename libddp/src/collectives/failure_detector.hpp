// Finds out why an operation does not finish: asks every member of the group what it is doing, decides, and tells the
// others, so that all survivors report the same cause.
//
// A collective that fails locally says little: a closed connection may belong to a rank that died or to one that gave
// up because of a third. So nobody reports before it has asked the others, and whoever finds the cause sends it to all
// members that answer before it lets go of its own connections. Nothing of this costs anything while all goes well.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/group_status.hpp"
#include "collectives/operation_log.hpp"
#include "world/peer_channel.hpp"

namespace ddp {

/// Who is in a group, in rank order.
struct GroupMembers {
  std::string name;  ///< the same on all members, unique in the job
  int rank = 0;      ///< own rank in the group
  std::vector<int> global_ranks;
  std::vector<world::PeerEndpoint> endpoints;   ///< of each member; unused for the own rank
  std::shared_ptr<world::PeerChannel> channel;  ///< null in a group of one
};

/// Thread-safe.
class FailureDetector {
 public:
  static constexpr std::chrono::milliseconds kLeastTime{500};

  /// @param on_verdict called, on the peer channel's thread, when another member says that the group has failed.
  FailureDetector(const GroupMembers& members, const OperationLog& log, std::function<void()> on_verdict);
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;
  ~FailureDetector();

  /// Why the group has failed, once it has.
  std::optional<Error> verdict() const;

  /// Finds the cause, makes it the verdict (unless there is one already) and tells the others. Returns the verdict, or
  /// nothing when the operation has finished after all.
  /// @param operation what does not finish or failed.
  /// @param local_problem the text of a local failure; empty when time ran out.
  /// @param still_running whether the operation is still under way: one that ends while the others are asked is no
  /// failure.
  /// @param deadline by which it should have returned. A shorter time than kLeastTime is not kept to: who asks without
  ///        leaving time to answer would take everyone for dead.
  std::optional<Error> investigate(const Operation& operation, const std::string& local_problem,
                                   const std::function<bool()>& still_running, Deadline deadline);

  /// Whether the next rank has called something else as collective number @p operation.sequence, or already knows that
  /// the group has failed. Asks only that one rank, so that a long wait costs little; among all ranks, someone's
  /// neighbour differs if any two differ. False when there is no answer.
  bool neighbour_disagrees(const Operation& operation, Deadline deadline) const;

 private:
  struct Member {
    int rank;
    world::PeerReply reply;
    std::optional<StatusAnswer> status;
  };
  Bytes answer(std::span<const std::byte> body);
  std::vector<Member> ask_all(std::uint64_t sequence, Deadline deadline) const;
  std::optional<Error> judge(const Operation& operation, const std::string& local_problem,
                             const std::vector<Member>& members) const;
  void tell(const Error& error, const std::vector<Member>& members, Deadline deadline) const;
  Error settle(const Error& error);
  int global(int rank) const { return members_.global_ranks[static_cast<std::size_t>(rank)]; }

  const GroupMembers members_;
  const OperationLog& log_;
  const std::function<void()> on_verdict_;
  const std::string service_;
  std::mutex investigation_;  ///< one at a time
  mutable std::mutex mutex_;  ///< guards verdict_
  std::optional<Error> verdict_;
};

}  // namespace ddp
