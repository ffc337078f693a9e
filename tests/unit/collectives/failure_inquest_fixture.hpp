// Members of a group over made-up time and connections, healthy, troubled or dying, and a rank that waits for them.
#pragma once

#include "collectives/failure_inquest.hpp"

namespace ddp::collectives::test {

using Kind = world::PeerReply::Kind;
using Time = LifeSigns::Time;

inline constexpr Time kStart{std::chrono::hours(1)};

/// How a member dies.
enum class Death {
  none,
  killed,       ///< its port is closed
  vanished,     ///< its host does not answer
  unreachable,  ///< its host does not answer, and the network says so after a while
  stopped,      ///< its kernel takes connections, and it never answers
  replaced,     ///< another program has got its port, and hangs up
};

struct FakeMember {
  struct Pause {
    Time from;
    Time to;
  };
  std::vector<Pause> pauses;       ///< stopped, or waiting for memory
  milliseconds slowest{2};         ///< answer while it runs
  int losses = 0;                  ///< of 100 connections, so many need another second
  int refused_for_being_busy = 0;  ///< of 100 questions
  int hung_up_on = 0;              ///< of 100 questions
  bool waits = true;
  Time leaves = Time::max();  ///< the group
  bool runs = false;          ///< the kernel says so, whether it answers or not
  Death death = Death::none;
  Time dies = Time::max();
};

inline Operation all_reduce() {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.count = 100;
  operation.sequence = 5;
  return operation;
}

/// The first of some members asks the others.
class FakeLink final : public MemberLink {
 public:
  FakeLink(std::vector<FakeMember> others, Operation operation, unsigned seed)
      : operation_(std::move(operation)), others_(std::move(others)), open_(others_.size()) {
    random_.seed(seed);
  }

  Time now() const override { return now_; }
  void ask(int member) override { open_[static_cast<std::size_t>(member)] = reply_of(member, now_); }
  bool asking(int member) const override { return open_[static_cast<std::size_t>(member)].has_value(); }
  bool runs(int member) const override { return others_[static_cast<std::size_t>(member)].runs; }
  std::vector<MemberReply> wait(Time until) override {
    if (now_ < stall_ && stall_ <= until) {  // the host was suspended, and the deadline passed meanwhile
      for (auto& reply : open_) {
        if (reply && reply->at < Time::max()) reply->at += stall_length_;
      }
      now_ = stall_ + stall_length_;
      until = now_;
    }
    Time first = until;
    for (const auto& reply : open_) {
      if (reply) first = std::min(first, std::max(reply->at, now_));
    }
    now_ = std::max(now_, first);
    std::vector<MemberReply> replies;
    for (std::size_t member = 0; member < open_.size(); ++member) {
      if (!open_[member] || open_[member]->at > now_) continue;
      replies.push_back({.rank = static_cast<int>(member), .kind = open_[member]->kind});
      if (replies.back().kind == Kind::answered) replies.back().status = status_of(others_[member]);
      open_[member].reset();
    }
    return replies;
  }

  void pass(Time to) { now_ = std::max(now_, to); }
  /// All that answer say so of those members.
  void say_running(std::vector<int> members) { running_ = std::move(members); }
  void stall_at(Time when, milliseconds length) {
    stall_ = when;
    stall_length_ = length;
  }

 private:
  struct Reply {
    Kind kind;
    Time at;
  };

  bool one_of_hundred(int chances) { return static_cast<int>(random_() % 100) < chances; }
  StatusAnswer status_of(const FakeMember& member) const {
    return {.last_issued = 5,
            .fingerprint = operation_.fingerprint(),
            .description = operation_.description(),
            .waits = member.waits,
            .running = running_};
  }
  Reply reply_of(int number, Time asked) {
    const FakeMember& member = others_[static_cast<std::size_t>(number)];
    Time at = asked;
    if (one_of_hundred(member.losses)) at += seconds(1);  // the kernel sends SYN again
    Kind kind = Kind::answered;
    if (one_of_hundred(member.hung_up_on)) kind = Kind::hung_up;
    if (one_of_hundred(member.refused_for_being_busy)) kind = Kind::busy;
    at += std::chrono::microseconds(random_() % static_cast<unsigned>(member.slowest.count() * 1000 + 1));
    for (const auto& pause : member.pauses) {
      if (at >= pause.from && at < pause.to) at = pause.to + milliseconds(1);
    }
    if (at < member.dies) return {at >= member.leaves ? Kind::failed : kind, at};
    const bool open = asked < member.dies;  // when it died
    switch (member.death) {
      case Death::none: break;
      case Death::killed: return open ? Reply{Kind::hung_up, member.dies} : Reply{Kind::refused, asked};
      case Death::unreachable: return {Kind::unreachable, asked + seconds(3)};
      case Death::replaced: return {Kind::hung_up, std::max(asked, member.dies)};
      case Death::vanished:
      case Death::stopped: break;
    }
    return {Kind::no_answer, Time::max()};
  }

  std::mt19937 random_;
  std::vector<int> running_;
  const Operation operation_;
  std::vector<FakeMember> others_;
  std::vector<std::optional<Reply>> open_;
  Time now_ = kStart;
  Time stall_ = Time::max();
  milliseconds stall_length_{};
};

/// A rank and those that it waits for, as GroupEngine and FailureDetector run them.
class Round {
 public:
  Round(std::vector<FakeMember> members, milliseconds peer_timeout, unsigned seed, Operation operation = all_reduce())
      : link(members, operation, seed),
        operation_(std::move(operation)),
        signs_(static_cast<int>(members.size()), peer_timeout),
        peer_timeout_(peer_timeout) {
    group_.name = "test";
    for (int rank = 0; rank < static_cast<int>(members.size()); ++rank) group_.global_ranks.push_back(rank);
    group_.peer_timeout = peer_timeout;
  }

  /// Looks after the others while the operation waits, until @p finished.
  std::optional<Error> wait(Time finished) {
    milliseconds interval = seconds(1);
    for (Time next = kStart + interval; next < finished; next = link.now() + interval) {
      link.pass(next);
      Inquest inquest(group_, operation_, {.kind = Occasion::Kind::waiting}, signs_, link);
      if (auto error = inquest.run([&] { return link.now() < finished; })) return error;
      interval = std::min(interval * 2, longest_probe_interval(peer_timeout_));
    }
    return std::nullopt;
  }
  std::optional<Error> fail(Time when) {
    link.pass(when);
    const Error failure = communication_failure(operation_, "ECONNRESET (104)");
    Inquest inquest(group_, operation_,
                    {.kind = Occasion::Kind::failure, .local_failure = failure, .end = when + peer_timeout_}, signs_,
                    link);
    return inquest.run([] { return true; });
  }
  std::optional<Error> reach_deadline(Time deadline) {
    link.pass(deadline - seconds(2));
    Inquest inquest(group_, operation_, {.kind = Occasion::Kind::deadline, .end = deadline}, signs_, link);
    return inquest.run([] { return true; });
  }

  /// Of all members, in rank order.
  void place(std::vector<int> nodes) { group_.nodes = std::move(nodes); }

  FakeLink link;

 private:
  GroupMembers group_;
  const Operation operation_;
  LifeSigns signs_;
  milliseconds peer_timeout_;
};

}  // namespace ddp::collectives::test
