// How survivors come to one verdict though several of them find one at the same time, and any may die meanwhile
// (decision 0062). No I/O, no clock.
#pragma once

#include <optional>
#include <vector>

#include "collectives/group_members.hpp"
#include "collectives/group_status.hpp"

namespace ddp::collectives {

/// What one member knows of verdicts. Of proposals the first stays, whatever comes later.
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

}  // namespace ddp::collectives
