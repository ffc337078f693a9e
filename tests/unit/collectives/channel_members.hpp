// Members of a group that answer over real channels on loopback, for tests of finding out why an operation does not
// finish.
#pragma once

#include "base/message.hpp"
#include "base/socket.hpp"
#include "collectives/failure_detector.hpp"

namespace ddp::test {

using collectives::FailureDetector;
using collectives::GroupMembers;
using collectives::OperationLog;
using ddp::Operation;
using ddp::OperationKind;
using Ranks = std::vector<int>;

/// Members of one group in one process. World ranks are ten times the rank in the group, so that mixing them up shows.
class Members {
 public:
  explicit Members(int size, milliseconds peer_timeout = seconds(30))
      : members_(static_cast<std::size_t>(size)), peer_timeout_(peer_timeout) {
    std::vector<world::PeerEndpoint> endpoints;
    Ranks global;
    for (int rank = 0; rank < size; ++rank) {
      auto& channel = members_[static_cast<std::size_t>(rank)].channel;
      channel = std::make_shared<world::PeerChannel>("127.0.0.1");
      endpoints.push_back(
          {.rank = rank * 10, .address = "127.0.0.1", .port = channel->port(), .token = channel->token()});
      global.push_back(rank * 10);
    }
    endpoints_ = endpoints;
    for (int rank = 0; rank < size; ++rank) start(rank, global);
  }

  FailureDetector& detector(int rank) { return *member(rank).detector; }
  int told(int rank) { return *member(rank).told; }
  /// The operation is called on this rank, as its next.
  void call(int rank, const Operation& operation) { member(rank).log->issued(operation); }
  /// As another member does, before it knows that all have heard of it.
  void propose(int witness, const Error& error) {
    world::ask_peers({endpoints_.at(static_cast<std::size_t>(witness))}, "group/test",
                     base::encode(collectives::GroupMessage{collectives::Proposal{.error = error}}),
                     Deadline::after(seconds(10)));
  }
  void call_everywhere(const Operation& operation) {
    for (std::size_t rank = 0; rank < members_.size(); ++rank) call(static_cast<int>(rank), operation);
  }
  void kill(int rank) {
    member(rank).detector.reset();
    member(rank).group.reset();
    member(rank).channel.reset();
  }
  /// On which node each is, from the next stop() on; without: all on one.
  void place(std::vector<int> nodes) { nodes_ = std::move(nodes); }
  /// Makes it as silent as a stopped process: its port accepts connections but never answers.
  /// @param process what the others know to be its process.
  void stop(int rank, base::ProcessNumber process = {}) {
    kill(rank);
    endpoints_[static_cast<std::size_t>(rank)].process = process;
    silent_.push_back(base::listen_tcp("127.0.0.1"));
    endpoints_[static_cast<std::size_t>(rank)].port = base::local_port(silent_.back().get());
    Ranks global;
    for (std::size_t i = 0; i < members_.size(); ++i) global.push_back(static_cast<int>(i) * 10);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].channel) start(static_cast<int>(i), global);
    }
  }

 private:
  struct Member {
    std::shared_ptr<world::PeerChannel> channel;
    std::unique_ptr<OperationLog> log = std::make_unique<OperationLog>();
    std::unique_ptr<std::atomic<int>> told = std::make_unique<std::atomic<int>>(0);
    std::unique_ptr<GroupMembers> group;
    std::unique_ptr<FailureDetector> detector;
  };
  Member& member(int rank) { return members_.at(static_cast<std::size_t>(rank)); }
  void start(int rank, const Ranks& global) {
    Member& own = member(rank);
    own.detector.reset();
    own.group = std::make_unique<GroupMembers>(GroupMembers{.name = "test",
                                                            .rank = rank,
                                                            .global_ranks = global,
                                                            .endpoints = endpoints_,
                                                            .nodes = nodes_,
                                                            .channel = own.channel,
                                                            .peer_timeout = peer_timeout_});
    own.detector = std::make_unique<FailureDetector>(*own.group, *own.log, [count = own.told.get()] { ++*count; });
  }

  std::vector<Member> members_;
  milliseconds peer_timeout_;
  std::vector<world::PeerEndpoint> endpoints_;
  std::vector<int> nodes_;
  std::vector<base::UniqueFd> silent_;
};

inline Operation all_reduce(std::uint64_t sequence, std::size_t count = 100) {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.count = count;
  operation.sequence = sequence;
  return operation;
}

inline Deadline in(milliseconds time) { return Deadline::after(time); }

/// The verdict about an operation that does not end by itself.
inline Error cause_found_by(FailureDetector& detector, const Operation& operation, const std::string& problem,
                            Deadline deadline) {
  std::optional<Error> local_failure;
  if (!problem.empty()) local_failure = collectives::communication_failure(operation, problem);
  return detector
      .investigate(
          operation, local_failure, [] { return true; }, deadline)
      .value();
}

}  // namespace ddp::test
