// A stranger at a rank's port, without the job's secrets, changes nothing, whenever it comes and whatever it does.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>

#include "base/socket.hpp"
#include "collectives/tcp/admission.hpp"
#include "collectives/tcp/tcp_backend.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/collectives/checked_call.hpp"

namespace ddp::collectives::tcp {
namespace {

using testing::CheckedCall;
using testing::run;
using testing::soon;

/// Two ranks of which strangers know addresses and ports, as /proc/net/tcp shows them.
class TcpStrangers : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  TcpStrangers() {
    for (int rank = 0; rank < kRanks; ++rank) {
      BackendConfig config;
      config.rank = rank;
      config.size = kRanks;
      config.interface_address = "127.0.0.1";
      backends_.push_back(make_backend(config));
      addresses_.push_back(backends_.back()->address());
    }
  }
  ~TcpStrangers() override {
    for (auto& backend : backends_) backend->close(soon());
  }

  /// Ends a connection with what it is about to say.
  base::UniqueFd stranger(int rank, std::span<const std::byte> says = {}) {
    base::UniqueFd fd = base::connect_tcp("127.0.0.1", decode_rank_record(addresses_.at(index(rank))).port, soon());
    if (!says.empty()) base::send_all(fd.get(), says, soon(), "saying something strange");
    return fd;
  }
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  void connect() {
    for (auto& backend : backends_) backend->connect(addresses_, soon());
  }
  /// A few collectives and messages among all.
  void work() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([this, rank, first = sequence_] {
        for (std::uint64_t i = 1; i <= 3; ++i) {
          const CheckedCall call({.kind = OperationKind::all_reduce, .count = i == 2 ? 100'000U : 10U}, kRanks, rank,
                                 first + i);
          const testing::Ended ended = run(*backends_[index(rank)], call.operation());
          ASSERT_EQ(ended.outcome, Outcome::ok) << ended.failure.cause;
          call.check();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    sequence_ += 3;
  }

  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<Bytes> addresses_;
  std::uint64_t sequence_ = 0;
};

TEST_F(TcpStrangers, ScanHoldAndTalkBeforeDuringAndAfterConnect) {
  const Bytes garbage(5000, std::byte{'G'});
  const HelloBytes hello = encode(Hello{.from = 0, .to = 1});
  const auto visit = [&](int rank, std::vector<base::UniqueFd>& held) {
    stranger(rank);  // connects and leaves
    held.push_back(stranger(rank));
    held.push_back(stranger(rank, garbage));
    held.push_back(stranger(rank, std::span(hello).first(20)));
    held.push_back(stranger(rank, hello));
  };
  std::vector<base::UniqueFd> held;
  for (int rank = 0; rank < kRanks; ++rank) visit(rank, held);
  connect();
  for (int rank = 0; rank < kRanks; ++rank) visit(rank, held);
  std::atomic<bool> over{false};
  std::thread visitor([&] {
    while (!over) {
      try {
        for (int rank = 0; rank < kRanks; ++rank) visit(rank, held);
      } catch (const Error&) {  // whose ranks are all connected need no listener
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  work();
  work();
  over = true;
  visitor.join();
  work();
}

TEST_F(TcpStrangers, AThousandConnections) {
  constexpr rlim_t kDescriptors = 2000;  // the usual limit is 1,024
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < kDescriptors) GTEST_SKIP() << "open files are limited to " << before.rlim_max;
  const rlimit raised{.rlim_cur = std::max(before.rlim_cur, kDescriptors), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &raised), 0);
  connect();
  std::vector<base::UniqueFd> held;
  for (int i = 0; i < 1000; ++i) held.push_back(stranger(i % 2));
  work();
  work();
  held.clear();
  ::setrlimit(RLIMIT_NOFILE, &before);
}

/// It says that it is rank 0, gets a challenge, and cannot answer it.
TEST_F(TcpStrangers, AnImpostorIsNotHeard) {
  connect();
  const HelloBytes hello = encode(Hello{.from = 0, .to = 1, .nonce = random_key()});
  const base::UniqueFd impostor = stranger(1, hello);
  std::vector<std::byte> challenge(kChallengeBytes);
  std::atomic<bool> over{false};
  std::thread rank_1([&] {  // polls, since it waits for a message
    const std::vector<std::byte> none;
    std::vector<std::uint8_t> memory(8);
    Operation receive;
    receive.kind = OperationKind::recv;
    receive.dtype = DType::uint8;
    receive.root = 2;
    receive.count = memory.size();
    receive.output = memory;
    Request& request = backends_[1]->init({&receive, 1}, soon());
    request.post();
    while (!over) request.poll();
    backends_[1]->abort();
    request.release();
  });
  base::receive_exactly(impostor.get(), challenge, soon(), "reading the challenge");
  base::send_all(impostor.get(), Bytes(sizeof(Proof), std::byte{1}), soon(), "guessing");
  std::byte verdict{};
  EXPECT_THROW(base::receive_exactly(impostor.get(), {&verdict, 1}, soon(), "hoping"), Error);
  over = true;
  rank_1.join();
}

/// The challenge does not contain the secret, nor is it the same twice.
TEST_F(TcpStrangers, LearnNothingFromChallenges) {
  prepare_proofs();
  Admission admission("127.0.0.1");
  std::vector<Bytes> records = addresses_;
  const Key secret = random_key();
  records[1] = encode(RankRecord{.address = "127.0.0.1", .port = admission.port(), .secret = secret});
  const MeshIdentity identity(1, records);
  admission.begin(identity);
  std::vector<Bytes> challenges;
  for (int i = 0; i < 2; ++i) {
    const base::UniqueFd fd = base::connect_tcp("127.0.0.1", admission.port(), soon());
    base::send_all(fd.get(), encode(Hello{.from = 0, .to = 1}), soon(), "asking");
    Bytes challenge(kChallengeBytes);
    while (!base::wait_for(fd.get(), 1 /*POLLIN*/, Deadline::after(std::chrono::milliseconds(1)))) {
      EXPECT_TRUE(admission.advance().empty());
    }
    base::receive_exactly(fd.get(), challenge, soon(), "reading the challenge");
    EXPECT_EQ(std::search(challenge.begin(), challenge.end(), secret.begin(), secret.end()), challenge.end());
    challenges.push_back(challenge);
  }
  EXPECT_NE(challenges[0], challenges[1]);
}

TEST_F(TcpStrangers, AreBounded) {
  prepare_proofs();
  Admission admission("127.0.0.1");
  std::vector<Bytes> records = addresses_;
  records[1] = encode(RankRecord{.address = "127.0.0.1", .port = admission.port(), .secret = random_key()});
  const MeshIdentity identity(1, records);
  admission.begin(identity);
  std::vector<base::UniqueFd> held;
  for (std::size_t i = 0; i < admission.most_unproven() * 3; ++i) {
    held.push_back(base::connect_tcp("127.0.0.1", admission.port(), soon()));
    EXPECT_TRUE(admission.advance().empty());
    EXPECT_LE(admission.num_unproven(), Admission::kMostStrangers + kRanks);
  }
}

}  // namespace
}  // namespace ddp::collectives::tcp
