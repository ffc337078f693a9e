// What ranks that leave, die, or fail leave to the others: all that they have sent, and a reason.
#include <sys/socket.h>

#include "collectives/tcp/mesh.hpp"
#include "unit/collectives/tcp/tcp_ranks.hpp"

namespace ddp::collectives::tcp {
namespace {

using testing::BackendRanks;
using testing::CheckedCall;
using testing::run;
using testing::soon;

TEST(TcpEndings, WhoLeavesIsToldApartFromTheDead) {
  BackendRanks group(subject(3));
  group.on_all([&](int rank) { all_reduce(group.at(rank), 3, rank, 1, 10); });
  group.at(1).close(soon());
  group.on_all([&](int rank) {
    if (rank == 1) return;
    const CheckedCall call({.kind = OperationKind::all_reduce, .count = 10}, 3, rank, 2);
    const testing::Ended ended = run(group.at(rank), call.operation());
    EXPECT_EQ(ended.outcome, Outcome::peers_failed);
    EXPECT_EQ(ended.failure.ranks, std::vector<int>{1});
    EXPECT_NE(ended.failure.cause.find("left the group"), std::string::npos) << ended.failure.cause;
  });
}

/// A rank that finishes first and leaves takes nothing from those that are still reading.
TEST(TcpEndings, WhatWasSentBeforeLeavingArrives) {
  for (int round = 0; round < 5; ++round) {
    BackendRanks group(subject(4));
    group.on_all([&](int rank) {
      const CheckedCall call({.kind = OperationKind::broadcast, .count = 300'000, .root = round % 4}, 4, rank, 1);
      const testing::Ended ended = run(group.at(rank), call.operation());
      EXPECT_EQ(ended.outcome, Outcome::ok) << ended.failure.cause;
      call.check();
      group.at(rank).close(soon());
    });
  }
}

/// The other has read nothing yet, and meets the last message and the end of the connection at once.
TEST(TcpEndings, WhoDiesAfterACollectiveTakesNothingFromTheOther) {
  BackendRanks group(subject(2));
  group.on_all([&](int rank) { all_reduce(group.at(rank), 2, rank, 1, 10); });
  const CheckedCall call({.kind = OperationKind::all_reduce, .count = 10}, 2, 1, 2);
  const Operation operation = call.operation();
  Request& request = group.at(1).init({&operation, 1}, soon());
  request.post();
  all_reduce(group.at(0), 2, 0, 2, 10);
  group.kill(0);
  Outcome outcome = Outcome::running;
  while (outcome == Outcome::running) outcome = request.poll();
  EXPECT_EQ(outcome, Outcome::ok) << (outcome == Outcome::ok ? "" : request.failure().cause);
  request.release();
  call.check();
  const testing::Ended next = run(group.at(1), operation);
  EXPECT_EQ(next.outcome, Outcome::peers_failed);
  EXPECT_EQ(next.failure.ranks, std::vector<int>{0});
}

/// Also when it is asked for only after its sender has left.
TEST(TcpEndings, MessagesSentBeforeLeavingAreKept) {
  BackendRanks group(subject(2));
  group.on_all([&](int rank) { all_reduce(group.at(rank), 2, rank, 1, 10); });
  std::vector<float> sent{1, 2, 3};
  for (const std::uint32_t tag : {1U, 2U, 3U}) {
    ASSERT_EQ(run(group.at(0), message(OperationKind::send, 1, tag, sent)).outcome, Outcome::ok);
  }
  group.at(0).close(soon());
  for (const std::uint32_t tag : {2U, 1U}) {
    std::vector<float> received(sent.size());
    const testing::Ended ended = run(group.at(1), message(OperationKind::recv, 0, tag, received));
    EXPECT_EQ(ended.outcome, Outcome::ok) << tag << ": " << ended.failure.cause;
    EXPECT_EQ(received, sent);
  }
  std::vector<float> other(5);
  EXPECT_EQ(run(group.at(1), message(OperationKind::recv, 0, 3, other)).outcome, Outcome::mismatch);
}

Outcome poll_to_end(Request& request) {
  Outcome outcome = Outcome::running;
  while (outcome == Outcome::running) outcome = request.poll();
  return outcome;
}

/// Two gathers to a rank that has read nothing of them yet.
class UnreadGathers {
 public:
  static constexpr int kRoot = 2;

  explicit UnreadGathers(BackendRanks& group) : group_(group) {
    group.on_all([&](int rank) {  // connects all
      const CheckedCall call({.kind = OperationKind::all_to_all, .count = 10}, group.size(), rank, 1);
      ASSERT_EQ(run(group.at(rank), call.operation()).outcome, Outcome::ok);
    });
    for (const std::uint64_t sequence : {2, 3}) {
      calls_.push_back(std::make_unique<CheckedCall>(call(), group.size(), kRoot, sequence));
      requests_.push_back(&group.at(kRoot).init({&calls_.back()->operation(), 1}, soon()));
      requests_.back()->post();
    }
    for (int rank = 0; rank < group.size(); ++rank) {
      if (rank == kRoot) continue;
      for (const std::uint64_t sequence : {2, 3}) {
        const CheckedCall mine(call(), group.size(), rank, sequence);
        EXPECT_EQ(run(group.at(rank), mine.operation()).outcome, Outcome::ok);
      }
    }
  }
  /// Then nothing more is.
  void expect_complete(Outcome next) {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const Outcome outcome = poll_to_end(*requests_[i]);
      EXPECT_EQ(outcome, Outcome::ok) << (outcome == Outcome::ok ? "" : requests_[i]->failure().cause);
      requests_[i]->release();
      if (outcome == Outcome::ok) calls_[i]->check();
    }
    const CheckedCall more(call(), group_.size(), kRoot, 4);
    EXPECT_EQ(run(group_.at(kRoot), more.operation()).outcome, next);
  }

 private:
  static testing::Call call() { return {.kind = OperationKind::gather, .count = 10, .root = kRoot}; }
  BackendRanks& group_;
  std::vector<std::unique_ptr<CheckedCall>> calls_;
  std::vector<Request*> requests_;
};

/// Whichever connection is read first.
TEST(TcpEndings, ADeathTakesNothingThatOthersHaveDelivered) {
  for (const int victim : {0, 1, 3}) {
    BackendRanks group(subject(4));
    UnreadGathers gathers(group);
    group.kill(victim);
    gathers.expect_complete(Outcome::peers_failed);
  }
}

TEST(TcpEndings, TheNewsOfAFailureEndsNothingThatIsComplete) {
  for (const Outcome news : {Outcome::mismatch, Outcome::peers_failed}) {
    BackendRanks group(subject(4));
    UnreadGathers gathers(group);
    std::vector<float> three(3);
    std::vector<float> five(5);
    if (news == Outcome::mismatch) {
      EXPECT_EQ(run(group.at(0), message(OperationKind::send, 3, 9, three)).outcome, Outcome::ok);
      EXPECT_EQ(run(group.at(3), message(OperationKind::recv, 0, 9, five)).outcome, news);
    } else {
      group.kill(3);
    }
    EXPECT_EQ(run(group.at(0), message(OperationKind::recv, 3, 8, three)).outcome, news);  // and tells all
    gathers.expect_complete(news);
  }
}

/// Two ranks whose meshes a test can reach, connected.
struct TwoMeshes {
  explicit TwoMeshes(std::chrono::milliseconds peer_timeout = std::chrono::seconds(30)) {
    for (int rank = 0; rank < 2; ++rank) {
      meshes.push_back(std::make_shared<TcpMesh>(MeshConfig{
          .group = "two", .rank = rank, .size = 2, .interface_address = "127.0.0.1", .peer_timeout = peer_timeout}));
      backends.push_back(make_backend(meshes.back(), 1, {0, 1}));
    }
    const std::vector<Bytes> addresses{meshes[0]->address(), meshes[1]->address()};
    for (const auto& mesh : meshes) mesh->connect(addresses);
    post(10, 1);
    finish();
  }
  ~TwoMeshes() {
    for (const auto& mesh : meshes) mesh->close(soon());
  }
  TwoMeshes& operator=(TwoMeshes&&) = delete;

  void post(std::size_t count, std::uint64_t sequence) {
    for (int rank = 0; rank < 2; ++rank) {
      const testing::Call call{.kind = OperationKind::broadcast, .count = count, .root = 0};
      calls.push_back(std::make_unique<CheckedCall>(call, 2, rank, sequence));
      requests.push_back(&backends[static_cast<std::size_t>(rank)]->init({&calls.back()->operation(), 1}, soon()));
      requests.back()->post();
    }
  }
  void finish() {
    const auto running = [](Request* request) { return request->poll() == Outcome::running; };
    while (std::count_if(requests.begin(), requests.end(), running) > 0) {
    }
    for (Request* request : requests) {
      EXPECT_EQ(request->poll(), Outcome::ok) << request->failure().cause;
      request->release();
    }
    requests.clear();
    calls.back()->check();
  }

  std::vector<std::shared_ptr<TcpMesh>> meshes;
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<CheckedCall>> calls;
  std::vector<Request*> requests;
};

/// Its host acknowledges all the time that there is no room.
TEST(TcpEndings, ARankThatDoesNotReadForLongIsNotLost) {
  TwoMeshes two(std::chrono::seconds(1));
  two.post(8'000'000, 2);  // more than the kernel takes
  for (const Deadline end = Deadline::after(std::chrono::milliseconds(2500)); !end.expired();) {
    ASSERT_EQ(two.requests[0]->poll(), Outcome::running) << two.requests[0]->failure().cause;
    two.backends[0]->rest(std::chrono::milliseconds(10));
  }
  two.finish();
}

/// More than the receiver's kernel takes, and than the receiver may owe credit for.
TEST(TcpEndings, ManyMessagesSentBeforeLeavingArrive) {
  constexpr std::uint32_t kMessages = 8;
  TwoMeshes two;
  const int little = 65536;
  ::setsockopt(two.meshes[1]->link(0)->fd(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
  std::vector<float> sent(15'000);
  std::iota(sent.begin(), sent.end(), 0.0F);
  for (std::uint32_t tag = 0; tag < kMessages; ++tag) {
    ASSERT_EQ(run(*two.backends[0], message(OperationKind::send, 1, tag, sent)).outcome, Outcome::ok);
  }
  std::thread leaves([&] { two.meshes[0]->close(soon()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::vector<std::vector<float>> received(kMessages, std::vector<float>(sent.size()));
  std::vector<Operation> receives;
  for (std::uint32_t tag = 0; tag < kMessages; ++tag) {
    receives.push_back(message(OperationKind::recv, 0, tag, received[tag]));
  }
  const testing::Ended ended = run(*two.backends[1], receives);
  EXPECT_EQ(ended.outcome, Outcome::ok) << ended.failure.cause;
  for (const auto& each : received) EXPECT_EQ(each, sent);
  leaves.join();
}

}  // namespace
}  // namespace ddp::collectives::tcp
