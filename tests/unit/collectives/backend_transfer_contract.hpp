// What every ddp::Backend must do with sends and receives, and when it is aborted or a rank does not come. Included
// beside backend_contract.hpp.
#pragma once

#include "unit/collectives/backend_contract.hpp"

namespace ddp::collectives::testing {

/// One message of known content.
class Message {
 public:
  Message(OperationKind kind, int peer, std::uint32_t tag, std::size_t bytes, unsigned seed)
      : seed_(seed), memory_(bytes) {
    if (kind == OperationKind::send) memory_ = content();
    operation_.kind = kind;
    operation_.dtype = DType::uint8;
    operation_.root = peer;
    operation_.tag = tag;
    operation_.count = bytes;
    const TensorView view(memory_.data(), DType::uint8, {static_cast<std::int64_t>(bytes)});
    (kind == OperationKind::send ? operation_.input : operation_.output) = view;
  }
  Message(Message&&) noexcept = default;
  Message& operator=(Message&&) noexcept = default;

  const Operation& operation() const { return operation_; }
  bool arrived() const { return memory_ == content(); }

 private:
  /// Bytes that repeat themselves after a prime number of them.
  std::vector<std::uint8_t> content() const {
    std::vector<std::uint8_t> bytes(memory_.size());
    constexpr std::size_t kPrime = 251;
    for (std::size_t i = 0; i < bytes.size() && i < kPrime; ++i)
      bytes[i] = static_cast<std::uint8_t>(i * 7 + seed_ * 31);
    for (std::size_t have = kPrime; have < bytes.size(); have *= 2) {
      std::copy_n(bytes.begin(), std::min(have, bytes.size() - have),
                  bytes.begin() + static_cast<std::ptrdiff_t>(have));
    }
    return bytes;
  }
  unsigned seed_;
  std::vector<std::uint8_t> memory_;
  Operation operation_;
};

inline void exchange(Backend& backend, std::vector<Message>& messages) {
  std::vector<Request*> requests;
  requests.reserve(messages.size());
  for (const Message& message : messages) requests.push_back(&backend.init({&message.operation(), 1}, soon()));
  for (const Ended& ended : drive(backend, requests)) ASSERT_EQ(ended.outcome, Outcome::ok) << ended.failure.cause;
  for (const Message& message : messages) {
    EXPECT_TRUE(message.operation().kind == OperationKind::send || message.arrived())
        << message.operation().description();
  }
}

TEST_P(BackendContract, EveryPairBothWaysInEverySize) {
  BackendRanks group(GetParam());
  for (const std::size_t bytes : {0, 1, 64, 257, 5'000, 70'000, 2'000'003}) {
    group.on_all([&](int rank) {
      std::vector<Message> messages;
      for (int step = 1; step < size(); ++step) {
        const int to = (rank + step) % size();
        const int from = (rank + size() - step) % size();
        messages.emplace_back(OperationKind::send, to, 9, bytes, static_cast<unsigned>(rank * 100 + to));
        messages.emplace_back(OperationKind::recv, from, 9, bytes, static_cast<unsigned>(from * 100 + rank));
      }
      exchange(group.at(rank), messages);
    });
  }
}

/// Tags may be received in any order; messages of one tag arrive in the order in which they were sent.
TEST_P(BackendContract, TagsInAnyOrderEachTagInOrder) {
  BackendRanks group(GetParam());
  for (const std::size_t bytes : {8, 3'000, 300'000}) {
    group.on_all([&](int rank) {
      if (rank > 1) return;
      constexpr unsigned kTags = 12;
      std::vector<Message> messages;
      for (unsigned i = 0; i < 2 * kTags; ++i) {
        const unsigned tag = rank == 0 ? i % kTags : kTags - 1 - i % kTags;
        messages.emplace_back(rank == 0 ? OperationKind::send : OperationKind::recv, 1 - rank, tag, bytes + tag,
                              tag * 2 + i / kTags);
      }
      exchange(group.at(rank), messages);
    });
  }
}

TEST_P(BackendContract, ReceivesPostedLongBeforeAndLongAfter) {
  BackendRanks group(GetParam());
  for (const int late : {0, 1}) {
    for (const std::size_t bytes : {100, 200'000}) {
      group.on_all([&](int rank) {
        if (rank > 1) return;
        if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::vector<Message> messages;
        messages.emplace_back(rank == 0 ? OperationKind::send : OperationKind::recv, 1 - rank, 5, bytes, 77U);
        exchange(group.at(rank), messages);
      });
    }
  }
}

/// More than a receiver that looks at none can be asked to keep.
TEST_P(BackendContract, ManySendsBeforeTheFirstReceive) {
  BackendRanks group(GetParam());
  group.on_all([&](int rank) {
    if (rank > 1) return;
    std::vector<Message> messages;
    for (unsigned i = 0; i < 600; ++i) {
      messages.emplace_back(rank == 0 ? OperationKind::send : OperationKind::recv, 1 - rank, i, 1'000U + i, i);
    }
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::swap(messages.front(), messages.back());
    }
    exchange(group.at(rank), messages);
  });
}

TEST_P(BackendContract, TransfersCoalescedAndBetweenCollectives) {
  BackendRanks group(GetParam());
  group.on_all([&](int rank) {
    for (std::uint64_t i = 1; i <= 30; ++i) {
      const auto seed = static_cast<unsigned>(i);
      const std::size_t bytes = i % 3 == 0 ? 150'000 : i * 10;
      std::vector<Message> messages;
      messages.emplace_back(OperationKind::send, (rank + 1) % size(), 1, bytes, seed + static_cast<unsigned>(rank));
      const int from = (rank + size() - 1) % size();
      messages.emplace_back(OperationKind::recv, from, 1, bytes, seed + static_cast<unsigned>(from));
      const std::vector<Operation> operations{messages[0].operation(), messages[1].operation()};
      ASSERT_EQ(run(group.at(rank), operations).outcome, Outcome::ok);
      EXPECT_TRUE(messages[1].arrived());
      const CheckedCall call({.kind = OperationKind::all_reduce, .count = i * 50, .seed = i}, size(), rank, i);
      ASSERT_EQ(run(group.at(rank), call.operation()).outcome, Outcome::ok);
      call.check();
    }
  });
}

/// The last rank does not come: the others' operations end at the deadline. Who is blamed, is with it: on a busy
/// machine others may be late, too.
TEST_P(BackendContract, DeadlineGivesTimeout) {
  const int absent = size() - 1;
  for (const OperationKind kind : {OperationKind::all_reduce, OperationKind::barrier, OperationKind::recv}) {
    for (const std::size_t count : {3, 200'000}) {
      BackendRanks group(GetParam());
      const auto deadline = Deadline::after(std::chrono::milliseconds(150));
      group.on_all([&](int rank) {
        if (rank == absent) return;
        Ended ended;
        if (kind == OperationKind::recv) {
          const Message message(kind, absent, 3, count, 1);
          ended = run(group.at(rank), message.operation(), deadline);
        } else {
          const CheckedCall call({.kind = kind, .count = count}, size(), rank, 1);
          ended = run(group.at(rank), call.operation(), deadline);
        }
        EXPECT_EQ(ended.outcome, Outcome::timeout);
        EXPECT_TRUE(deadline.expired());
        const std::vector<int>& blamed = ended.failure.ranks;
        EXPECT_TRUE(blamed.empty() || std::count(blamed.begin(), blamed.end(), absent) == 1) << ended.failure.cause;
        EXPECT_FALSE(ended.failure.cause.empty());
      });
    }
  }
}

/// From another thread, while an operation waits for a rank that does not come, and one in which data moves.
TEST_P(BackendContract, AbortEndsOperationsAndLaterOnes) {
  const int absent = size() - 1;
  for (const std::size_t count : {3, 500'000}) {
    BackendRanks group(GetParam());
    group.on_all([&](int rank) {
      if (rank == absent) return;
      std::thread aborter([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        group.at(rank).abort();
        group.at(rank).abort();
      });
      for (std::uint64_t i = 1; i <= 2; ++i) {
        const CheckedCall call({.kind = OperationKind::all_reduce, .count = count}, size(), rank, i);
        EXPECT_EQ(run(group.at(rank), call.operation()).outcome, Outcome::aborted);
      }
      const Message message(OperationKind::recv, absent, 3, count, 1);
      EXPECT_EQ(run(group.at(rank), message.operation()).outcome, Outcome::aborted);
      aborter.join();
    });
  }
  BackendRanks group(GetParam());
  group.on_all([&](int rank) {
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30 + rank));
      group.at(rank).abort();
    });
    Outcome outcome = Outcome::ok;
    for (std::uint64_t i = 1; outcome == Outcome::ok; ++i) {
      const CheckedCall call({.kind = OperationKind::all_reduce, .count = 200'000}, size(), rank, i);
      outcome = run(group.at(rank), call.operation()).outcome;
      if (outcome == Outcome::ok) call.check();
    }
    EXPECT_TRUE(outcome == Outcome::aborted || outcome == Outcome::peers_failed) << to_string(outcome);
    aborter.join();
  });
}

TEST_P(BackendContract, DifferentCallsAreAMismatch) {
  if (!GetParam().reports_mismatch) GTEST_SKIP() << "leaves it to the group";
  const int odd = size() - 1;
  for (const std::size_t count : {5, 100'000}) {
    for (const bool other_kind : {false, true}) {
      BackendRanks group(GetParam());
      group.on_all([&](int rank) {
        Call call{.kind = OperationKind::all_reduce, .count = count};
        if (rank == odd && other_kind) call.kind = OperationKind::all_gather;
        if (rank == odd && !other_kind) call.count = count + 1;
        const CheckedCall checked(call, size(), rank, 1);
        const Ended ended = run(group.at(rank), checked.operation());
        EXPECT_EQ(ended.outcome, Outcome::mismatch) << "rank " << rank << ": " << to_string(ended.outcome);
        EXPECT_FALSE(ended.failure.cause.empty());
      });
    }
  }
}

/// The receiver tells what was sent; the sender, whose operation is over or not, learns of it.
TEST_P(BackendContract, AMessageThatDoesNotFitIsToldByItsReceiver) {
  if (!GetParam().reports_mismatch) GTEST_SKIP() << "leaves it to the group";
  for (const std::size_t bytes : {8, 100'000}) {
    BackendRanks group(GetParam());
    group.on_all([&](int rank) {
      if (rank > 1) return;
      const Message message(rank == 0 ? OperationKind::send : OperationKind::recv, 1 - rank, 3,
                            bytes + static_cast<std::size_t>(rank), 1);
      const Ended ended = run(group.at(rank), message.operation());
      if (rank == 0) return;
      EXPECT_EQ(ended.outcome, Outcome::mismatch);
      EXPECT_FALSE(ended.failure.elsewhere);
      ASSERT_TRUE(ended.failure.message);
      EXPECT_EQ(ended.failure.message->receive.root, 0);
      EXPECT_EQ(ended.failure.message->receive.count, bytes + 1);
      EXPECT_EQ(ended.failure.message->count, bytes);
      EXPECT_EQ(ended.failure.message->sent, DType::uint8);
    });
  }
}

/// Of several that start as one.
TEST_P(BackendContract, TransfersThatWaitAreTold) {
  if (!GetParam().reports_mismatch) GTEST_SKIP() << "its parts, which are doubles, do not tell";
  BackendRanks group(GetParam());
  group.on_all([&](int rank) {
    if (rank > 1) return;
    const Message sent(OperationKind::send, 1 - rank, 1, 10, 1);
    const Message received(OperationKind::recv, 1 - rank, 1, 10, 1);
    const Message missing(OperationKind::recv, 1 - rank, 2, 10, 1);
    std::vector<Operation> operations{missing.operation(), sent.operation(), received.operation()};
    if (rank == 0) std::swap(operations.front(), operations.back());
    const std::size_t waiting = rank == 0 ? 2 : 0;
    Request& request = group.at(rank).init(operations, soon());
    request.post();
    const Deadline deadline = soon();
    const auto others_are_over = [&] {
      for (std::size_t i = 0; i < operations.size(); ++i) {
        if (i != waiting && request.waits(i)) return false;
      }
      return true;
    };
    do {
      ASSERT_EQ(request.poll(), Outcome::running);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    } while (!others_are_over() && !deadline.expired());
    EXPECT_TRUE(others_are_over());
    EXPECT_TRUE(request.waits(waiting));
    group.at(rank).abort();
    request.poll();
    request.release();
  });
}

TEST_P(BackendContract, RestReturnsByItsLimit) {
  BackendRanks group(GetParam());
  group.on_all([&](int rank) {
    const auto start = std::chrono::steady_clock::now();
    group.at(rank).rest(std::chrono::milliseconds(5));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  });
}

}  // namespace ddp::collectives::testing
