// The parts of the shared-memory backend over one mapping for all ranks, so that a thread sanitizer sees every access;
// and how the memory is cut.
#include "collectives/shm/collective_run.hpp"
#include "collectives/shm/peer_transfers.hpp"
#include "collectives/shm/segment_layout.hpp"
#include "collectives/shm/shared_segment.hpp"
#include "collectives/shm/shm_backend.hpp"
#include "collectives/shm/step_board.hpp"
#include "unit/collectives/backend_transfer_contract.hpp"
#include "unit/collectives/checked_call.hpp"

namespace ddp::collectives::shm {
namespace {

using testing::CheckedCall;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

/// Zeroed memory in place of a segment.
class Memory {
 public:
  explicit Memory(const SegmentLayout& layout)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, layout.total_bytes()))),
        view_(memory_.get(), layout) {
    std::memset(memory_.get(), 0, layout.total_bytes());
  }
  const SegmentView& view() const { return view_; }

 private:
  std::unique_ptr<std::byte, Free> memory_;
  SegmentView view_;
};

struct Rank {
  Rank(const SegmentView& view, int rank, std::uint64_t first_step)
      : bell(view, rank), board(view, rank, first_step, bell), run(board, first_step, {}) {}
  Doorbell bell;
  StepBoard board;
  CollectiveRun run;
};

void on_all(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (auto& thread : threads) thread.join();
}

/// In the smallest memory, where large tensors need many steps; step numbers wrap.
TEST(CollectiveRun, EveryCollectiveInLittleMemory) {
  constexpr int kRanks = 3;
  const SegmentLayout layout(kRanks, SegmentLayout::smallest_region(kRanks));
  const Memory memory(layout);
  constexpr std::uint64_t kFirst = std::uint64_t{0} - 21;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.push_back(std::make_unique<Rank>(memory.view(), rank, kFirst));
  on_all(kRanks, [&](int number) {
    Rank& rank = *ranks[static_cast<std::size_t>(number)];
    std::uint64_t sequence = 0;
    for (const std::size_t count : {0, 1, 300, 5'000, 20'011}) {
      for (int kind = 0; kind <= static_cast<int>(OperationKind::barrier); ++kind) {
        const CheckedCall call({.kind = static_cast<OperationKind>(kind),
                                .dtype = DType::bfloat16,
                                .op = ReduceOp::max,
                                .count = count,
                                .root = static_cast<int>(sequence % kRanks),
                                .in_place = sequence % 2 == 0,
                                .shift = 0,
                                .seed = sequence},
                               kRanks, number, sequence + 1);
        ++sequence;
        rank.run.start(call.operation());
        for (auto state = CollectiveRun::State::moving; state != CollectiveRun::State::complete;) {
          state = rank.run.advance();
          ASSERT_NE(state, CollectiveRun::State::mismatch);
          if (state == CollectiveRun::State::waiting) rank.bell.sleep(std::chrono::milliseconds(10));
        }
        call.check();
      }
    }
  });
}

TEST(CopyBytes, CopiesAllAndNoMoreWhereverTheyLieInTheirPages) {
  std::vector<unsigned char> from(20'000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i % 251 + 1);
  for (const std::size_t ahead : {0, 1, 16, 63, 64, 4095}) {
    for (const std::size_t bytes : {0, 1, 2047, 2048, 2049, 4096, 10'000}) {
      std::vector<unsigned char> to(from.size());
      const auto apart = reinterpret_cast<std::uintptr_t>(from.data()) - reinterpret_cast<std::uintptr_t>(to.data());
      const std::size_t first = (apart + ahead) % 4096;
      copy_bytes(to.data() + first, from.data(), bytes);
      std::vector<unsigned char> expected(from.size());
      std::copy_n(from.begin(), bytes, expected.begin() + static_cast<std::ptrdiff_t>(first));
      ASSERT_EQ(to, expected) << bytes << " bytes, " << ahead << " ahead";
    }
  }
}

/// Small data lie beside the flags, of which there are more than slots.
TEST(CollectiveRun, ARootIsAheadByAsManyOperationsAsThereIsRoomFor) {
  const SegmentLayout layout(2, SegmentLayout::smallest_region(2));
  for (const auto& [bytes, room] : {std::pair{kInlineBytes, kFlags}, std::pair{kInlineBytes + 1, kSlots}}) {
    const Memory memory(layout);
    Rank root(memory.view(), 0, 0);
    Rank other(memory.view(), 1, 0);
    std::uint64_t ahead = 0;
    for (;; ++ahead) {
      ASSERT_LE(ahead, room);
      const CheckedCall call({.kind = OperationKind::broadcast, .dtype = DType::uint8, .count = bytes, .root = 0}, 2, 0,
                             ahead + 1);
      root.run.start(call.operation());
      if (root.run.advance() == CollectiveRun::State::complete) continue;
      EXPECT_TRUE(root.run.waits_for_room());
      EXPECT_EQ(root.run.waits_for(), std::vector<int>{1});
      other.board.leave(0);
      EXPECT_EQ(root.run.advance(), CollectiveRun::State::complete);
      break;
    }
    EXPECT_EQ(ahead, room);
  }
}

/// Between two sleeps lies a poll that may have come before the change.
TEST(Doorbell, AChangeSinceTheLastSleepEndsTheNextAtOnce) {
  const SegmentLayout layout(2, SegmentLayout::smallest_region(2));
  const Memory memory(layout);
  Rank first(memory.view(), 0, 0);
  Rank second(memory.view(), 1, 0);
  first.bell.sleep(std::chrono::milliseconds(1));
  second.bell.changed();
  const auto start = std::chrono::steady_clock::now();
  first.bell.sleep(std::chrono::seconds(40));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

/// Ranks leave every step; those who wait for data need not hear of it.
TEST(Doorbell, OnlyThoseWhoWaitForRoomHearOfAStepThatIsLeft) {
  const SegmentLayout layout(2, SegmentLayout::smallest_region(2));
  const Memory memory(layout);
  Rank first(memory.view(), 0, 0);
  Rank second(memory.view(), 1, 0);
  for (const auto wait : {Doorbell::Wait::data, Doorbell::Wait::data_or_room}) {
    first.bell.sleep(std::chrono::milliseconds(1), wait);
  }
  second.board.leave(0);
  const auto start = std::chrono::steady_clock::now();
  first.bell.sleep(std::chrono::milliseconds(20), Doorbell::Wait::data);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
  first.bell.sleep(std::chrono::seconds(40), Doorbell::Wait::data_or_room);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

/// Whoever sleeps is woken by the change itself and not by a limit, which is much longer than the test may take.
TEST(Doorbell, NoChangeIsLost) {
  const SegmentLayout layout(2, SegmentLayout::smallest_region(2));
  const Memory memory(layout);
  Rank first(memory.view(), 0, 0);
  Rank second(memory.view(), 1, 0);
  on_all(2, [&](int number) {
    Rank& rank = number == 0 ? first : second;
    for (std::uint64_t i = 0; i < 2000; ++i) {
      // a root does not wait for data, but runs ahead until it waits for room
      const OperationKind kind = i / (2 * kFlags) % 2 == 0 ? OperationKind::barrier : OperationKind::broadcast;
      const CheckedCall call({.kind = kind}, 2, number, i + 1);
      rank.run.start(call.operation());
      while (rank.run.advance() != CollectiveRun::State::complete) {
        const bool room = rank.run.waits_for_room();
        rank.bell.sleep(std::chrono::seconds(100), room ? Doorbell::Wait::data_or_room : Doorbell::Wait::data);
      }
    }
  });
}

/// For example of a process that has got the PID of a rank that is gone.
TEST(PeerMemory, OnlyWhatIsTheRanksIsTaken) {
  const Memory memory({2, SegmentLayout::smallest_region(2)});
  RankControl& peer = memory.view().control(1);
  const PeerMemory reader(memory.view().control(0), peer);
  const std::vector<int> there{1, 2, 3};
  const auto from = reinterpret_cast<std::uintptr_t>(there.data());
  std::vector<int> here(3);
  const auto reads = [&] { return reader.read(here.data(), from, sizeof(int) * 3); };
  peer.pid = ::getpid();
  peer.process = process_number();
  peer.process_at = reinterpret_cast<std::uintptr_t>(&process_number());
  ASSERT_TRUE(reads());
  EXPECT_EQ(here, there);
  peer.process = process_number() + 1;
  EXPECT_FALSE(reads()) << "another process";
  peer.process = process_number();
  peer.pid_space = 1;
  EXPECT_FALSE(reads()) << "another PID namespace";
  peer.pid_space = 0;
  EXPECT_FALSE(reader.read(here.data(), 1, sizeof(int) * 3)) << "there is nothing";
  ASSERT_TRUE(reads());
  PeerMemory::withdraw(peer);
  EXPECT_FALSE(reads()) << "withdrawn";
}

/// In pieces, and out of the sender's memory.
class TransferWays : public ::testing::TestWithParam<bool> {};

TEST_P(TransferWays, MessagesOfAllSizesInTheSmallestRing) {
  const SegmentLayout layout(2, SegmentLayout::smallest_region(2));
  ASSERT_LE(layout.ring_bytes(), 4096U);
  const Memory memory(layout);
  constexpr std::uint64_t kFirst = std::uint64_t{0} - 320;  // positions wrap
  Rank ranks[]{{memory.view(), 0, 0}, {memory.view(), 1, 0}};
  for (const int number : {0, 1}) {  // as LifeWatch does
    RankControl& control = memory.view().control(number);
    control.pid = ::getpid();
    control.process = process_number();
    control.process_at = reinterpret_cast<std::uintptr_t>(&process_number());
  }
  PeerTransfers ends[]{{memory.view(), 0, 1, kFirst, ranks[0].bell, GetParam()},
                       {memory.view(), 1, 0, kFirst, ranks[1].bell, GetParam()}};
  on_all(2, [&](int number) {
    PeerTransfers& end = ends[number];
    for (std::uint32_t round = 0; round < 60; ++round) {
      std::size_t unfinished = 4;
      std::vector<std::vector<float>> buffers;
      std::vector<Operation> operations(4);
      for (std::uint32_t i = 0; i < 4; ++i) {
        // both send two and receive two; the receiver looks for the second first
        const bool sends = i < 2;
        const std::uint32_t tag = sends ? i : 3 - i;
        const std::size_t count = (round * 37 + tag * 500) % 1200;
        buffers.emplace_back(count, sends ? static_cast<float>(tag + round) : -1.0F);
        operations[i].kind = sends ? OperationKind::send : OperationKind::recv;
        operations[i].root = 1 - number;
        operations[i].tag = tag;
        operations[i].count = count;
      }
      for (std::size_t i = 0; i < 4; ++i) {
        operations[i].input = operations[i].output = buffers[i];
        end.post(operations[i], unfinished);
      }
      while (end.busy()) {
        if (!end.advance()) std::this_thread::yield();
        ASSERT_FALSE(end.mismatch());
      }
      EXPECT_EQ(unfinished, 0U);
      for (std::size_t i = 2; i < 4; ++i) {
        const auto value = static_cast<float>(operations[i].tag + round);
        EXPECT_EQ(buffers[i], std::vector<float>(buffers[i].size(), value));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(PeerTransfers, TransferWays, ::testing::Bool());

TEST(SegmentLayout, PartsDoNotOverlapAndFillTheRegion) {
  for (const int ranks : {1, 2, 3, 8, 64, kMaxRanks}) {
    for (const std::size_t extra : {0, 4, 60, 300}) {
      const SegmentLayout layout(ranks, SegmentLayout::smallest_region(ranks) + extra * kPageBytes);
      const int last = ranks - 1;
      EXPECT_LE(layout.ring_control(last, last) + sizeof(RingControl), layout.slot(last, 0));
      EXPECT_LE(layout.result_flag(last, kSlots - 1) + sizeof(ResultFlag), layout.ring_control(last, 0));
      EXPECT_EQ(layout.slot(last, kSlots - 1) + layout.slot_bytes(), layout.ring(last, 0));
      EXPECT_LE(layout.ring(last, last) + layout.ring_bytes(), layout.total_bytes());
      EXPECT_GE(layout.slot_bytes(), static_cast<std::size_t>(ranks) * 64);
      EXPECT_EQ(layout.slot_bytes() % 64, 0U);
      EXPECT_EQ(layout.region(last) % kPageBytes, 0U);
      EXPECT_EQ(layout.step_flag(0, kFlags + 1), layout.step_flag(0, 1));
      EXPECT_LE(layout.step_flag(last, kFlags - 1) + sizeof(StepFlag), layout.result_flag(last, 0));
    }
  }
}

}  // namespace

}  // namespace ddp::collectives::shm

namespace ddp::collectives::testing {

// The backend of ranks that share memory, as every backend.

namespace {

std::unique_ptr<Backend> plain(const BackendConfig& config) { return shm::create(config); }

/// As where the kernel forbids ranks to read each other's memory.
std::unique_ptr<Backend> unread(const BackendConfig& config) {
  return shm::create(config, shm::Endpoint{}, {.reads = false});
}

/// Step numbers and ring positions pass @p wrap.
std::function<std::unique_ptr<Backend>(const BackendConfig&)> starting_at(std::uint64_t first_step) {
  return [=](const BackendConfig& config) { return shm::create(config, shm::Endpoint{}, {.first_step = first_step}); };
}

INSTANTIATE_TEST_SUITE_P(
    Shm, BackendContract,
    ::testing::Values(
        Subject{.name = "Two", .create = plain, .size = 2},
        Subject{.name = "ThreeInPieces", .create = unread, .size = 3},
        Subject{.name = "Four", .create = starting_at((std::uint64_t{1} << 32U) - 16), .size = 4, .many = 1500},
        Subject{.name = "Five", .create = starting_at(std::uint64_t{0} - 16), .size = 5, .many = 1000}),
    subject_name);

TEST(ShmMessages, AMismatchEndsNothingThatIsComplete) {
  BackendRanks group(Subject{.name = "Three", .create = plain, .size = 3});
  const auto send = [&](int rank) {
    const Message message(OperationKind::send, 0, 1, 3, 1);
    EXPECT_EQ(run(group.at(rank), message.operation()).outcome, Outcome::ok);
  };
  send(1);
  send(2);
  const Message fits(OperationKind::recv, 1, 1, 3, 1);
  const Message differs(OperationKind::recv, 2, 1, 5, 1);
  const Operation first = fits.operation();
  const Operation second = differs.operation();
  const std::array requests{&group.at(0).init({&first, 1}, soon()), &group.at(0).init({&second, 1}, soon())};
  const std::vector<Ended> ends = drive(group.at(0), requests);
  EXPECT_EQ(ends[0].outcome, Outcome::ok) << ends[0].failure.cause;
  EXPECT_EQ(ends[1].outcome, Outcome::mismatch);
}

/// Its memory has something else by the time that the rest would be read.
TEST(ShmMessages, WhatItsSenderHasWithdrawnIsNotTaken) {
  BackendRanks group(Subject{.name = "Two", .create = plain, .size = 2});
  std::vector<float> sent(std::size_t{1} << 20U, 1.0F);
  std::vector<float> received(sent.size());
  Operation send;
  send.kind = OperationKind::send;
  send.root = 1;
  send.count = sent.size();
  send.input = send.output = sent;
  Operation recv = send;
  recv.kind = OperationKind::recv;
  recv.root = 0;
  recv.input = recv.output = received;
  Request& sending = group.at(0).init({&send, 1}, soon());
  sending.post();
  ASSERT_EQ(sending.poll(), Outcome::running);  // announces it
  Request& receiving = group.at(1).init({&recv, 1}, Deadline::after(std::chrono::milliseconds(200)));
  receiving.post();
  ASSERT_EQ(receiving.poll(), Outcome::running);
  ASSERT_EQ(received.front(), 1.0F);
  ASSERT_EQ(received.back(), 0.0F) << "all of it was read at once";
  group.at(0).abort();
  ASSERT_EQ(sending.poll(), Outcome::aborted);
  sending.release();
  std::fill(sent.begin(), sent.end(), 2.0F);
  Outcome outcome = Outcome::running;
  while ((outcome = receiving.poll()) == Outcome::running) std::this_thread::sleep_for(std::chrono::microseconds(100));
  EXPECT_EQ(outcome, Outcome::timeout) << to_string(outcome);
  receiving.release();
}

}  // namespace

}  // namespace ddp::collectives::testing
