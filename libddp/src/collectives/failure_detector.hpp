// Asks the members of a group why an operation does not finish, agrees with them on one verdict and spreads it, so that
// all survivors report the same cause.
//
// A local failure says little: a closed connection may belong to a rank that died, or to one that gave up because of a
// third. So a rank asks all others before it reports, and sends the verdict to those that answer before it closes its
// own connections. Several may find one at the same time, and differ: what they agree on is decided in Agreement.
// Without a failure this costs nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/failure_inquest.hpp"
#include "collectives/group_members.hpp"
#include "collectives/operation_log.hpp"

namespace ddp::collectives {

// ---- How survivors come to one verdict though several of them find one at the same time, and any may die meanwhile
// (decision 0062). No I/O, no clock.

/// What one member knows of verdicts. The first proposal stays, whatever comes later.
class VerdictRecord {
 public:
  /// Its answer as a witness.
  ProposalAnswer propose(const Error& error);
  /// The members have agreed on @p error. Returns the verdict: the first that this was called with.
  const Error& decide(const Error& error);
  const std::optional<Error>& verdict() const { return verdict_; }

 private:
  std::optional<Error> proposed_;
  std::optional<Error> verdict_;
};

/// The way of one member to the verdict of all: it goes from witness to witness, in an order that all share, and at
/// each takes over what was proposed there first. Behind a witness that all pass, all hold the same.
class Agreement {
 public:
  /// Living members that are passed. As long as one of them lives and is passed by all, the others may die.
  static constexpr int kWitnesses = 8;

  /// @param proposal of this member. @param absent members that are not asked, being dead or silent.
  Agreement(const GroupMembers& members, Error proposal, const std::vector<int>& absent);

  /// The witness to propose verdict() to, possibly the own rank. Nothing once all have been passed.
  std::optional<int> next() const;
  /// What that witness holds.
  void pass(const ProposalAnswer& answer);
  /// That witness is dead, silent or not in the group.
  void skip() { ++place_; }
  const Error& verdict() const { return verdict_; }

 private:
  Error verdict_;
  std::vector<int> order_;
  std::size_t place_ = 0;
  int passed_ = 0;
};

/// Thread-safe.
class FailureDetector {
 public:
  static constexpr std::chrono::milliseconds kLeastTime{500};

  /// @param members, @param log must outlive this object.
  /// @param on_verdict called, on the peer channel's thread, when another member says that the group has failed.
  FailureDetector(const GroupMembers& members, const OperationLog& log, std::function<void()> on_verdict);
  FailureDetector& operator=(FailureDetector&&) = delete;
  ~FailureDetector();
  /// Answers other ranks no more. Idempotent.
  void close() noexcept;

  /// Why the group has failed, once it has.
  std::optional<Error> verdict() const;

  /// Finds the cause, agrees with the others on a verdict, and tells them. Returns the verdict, or nothing when the
  /// operation has finished meanwhile.
  /// @param local_failure of judge().
  /// @param still_running whether the operation is still under way, and a verdict wanted.
  /// @param deadline by which it should have returned, but at least kLeastTime from now: with less, members without
  /// time to
  ///        answer would look dead.
  std::optional<Error> investigate(const Operation& operation, const std::optional<Error>& local_failure,
                                   const std::function<bool()>& still_running, Deadline deadline);

  /// Looks after those that a slow @p operation waits for: the next rank, and those behind it that nobody else watches;
  /// or the other side of a transfer. If any two ranks have called different things, so have some neighbours. If one of
  /// them differs, knows that the group has failed, or leaves two questions unanswered, all are asked, and the verdict
  /// is told to all. To be called again and again, at least every longest_probe_interval(): then a member that is
  /// silent is found within DDP_PEER_TIMEOUT.
  /// @param go_on is asked every 100 ms. False: returns at once; what is known of silent members is kept.
  void watch(const Operation& operation, const std::function<bool()>& go_on);

  /// This rank ends the group because of @p error. Returns the verdict that the members agree on, which is another if
  /// one was proposed before, and makes it that of this rank. Takes a second at most.
  Error agree(const Error& error);
  /// Tells all other members that the group has failed because of @p error, or what they agree on instead. This rank's
  /// operations do not end by it. Takes a second at most.
  void notify_all(const Error& error);

 private:
  class InquiryTurn;
  Bytes answer(std::span<const std::byte> body);
  std::optional<Error> inquire(const Operation& operation, Occasion occasion, LifeSigns& signs,
                               const std::function<bool()>& go_on);
  Error agreed(const Error& error, const std::vector<MemberReply>& findings, Deadline limit);
  std::optional<ProposalAnswer> propose(int witness, const Error& error, Deadline limit);
  Error adopt(const Error& verdict);
  void notify(const Error& verdict, const std::vector<MemberReply>& members, Deadline deadline) const;

  const GroupMembers& members_;
  const OperationLog& log_;
  const std::function<void()> on_verdict_;
  const std::string service_;
  LifeSigns signs_;             ///< of whose turn it is
  std::uint64_t watched_ = 0;   ///< number of the collective that was watched last; of whose turn it is
  std::atomic<int> urgent_{0};  ///< investigations that watch() gives way to
  mutable std::mutex mutex_;    ///< guards what follows
  std::condition_variable turn_ends_;
  bool inquiring_ = false;  ///< it is somebody's turn
  VerdictRecord record_;
};

}  // namespace ddp::collectives
