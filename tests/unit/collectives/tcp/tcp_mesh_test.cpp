// Meshes that several backends share, groups of many ranks, and little room for descriptors.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <numeric>

#include "base/socket.hpp"
#include "collectives/tcp/context.hpp"
#include "collectives/tcp/handshake.hpp"
#include "collectives/tcp/tcp_backend.hpp"
#include "support/no_descriptors_left.hpp"
#include "unit/collectives/tcp/tcp_ranks.hpp"

namespace ddp::collectives::tcp {
namespace {

using testing::BackendRanks;
using testing::CheckedCall;
using testing::run;
using testing::soon;

TEST(TcpMesh, ABackendOfOneRankCopies) {
  BackendRanks group(subject(1));
  for (const OperationKind kind : {OperationKind::all_reduce, OperationKind::broadcast, OperationKind::reduce_scatter,
                                   OperationKind::all_to_all, OperationKind::barrier}) {
    const CheckedCall call({.kind = kind, .count = 1000, .root = 0}, 1, 0, 1);
    EXPECT_EQ(run(group.at(0), call.operation()).outcome, Outcome::ok);
    call.check();
  }
}

/// As a hierarchy uses it: the leaders' collectives and everybody's messages over the same connections.
TEST(TcpMesh, ContextsOfAMeshAreKeptApart) {
  constexpr int kRanks = 4;
  const std::vector<int> leaders{2, 0};  // in this order
  std::vector<std::shared_ptr<TcpMesh>> meshes;
  std::vector<Bytes> addresses;
  for (int rank = 0; rank < kRanks; ++rank) {
    BackendConfig config;
    config.rank = rank;
    config.size = kRanks;
    config.interface_address = "127.0.0.1";
    meshes.push_back(make_mesh(config));
    addresses.push_back(meshes.back()->address());
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      TcpMesh& mesh = *meshes[static_cast<std::size_t>(rank)];
      mesh.connect(addresses);
      std::vector<int> everybody(kRanks);
      std::iota(everybody.begin(), everybody.end(), 0);
      const auto all = make_backend(meshes[static_cast<std::size_t>(rank)], 1, everybody);
      const auto place = std::find(leaders.begin(), leaders.end(), rank);
      for (std::uint64_t i = 1; i <= 20; ++i) {
        if (place != leaders.end() && i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(rank * 5));
        std::unique_ptr<Backend> outer;
        const auto number = static_cast<std::uint16_t>(1 + i);
        if (place != leaders.end()) {
          outer = make_backend(meshes[static_cast<std::size_t>(rank)], number, leaders);
          const int here = static_cast<int>(place - leaders.begin());
          all_reduce(*outer, 2, here, i, 30'000);
        }
        all_reduce(*all, kRanks, rank, i, 100);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& mesh : meshes) mesh->close(soon());
}

/// Trees, chains and rounds of a number of ranks that is no power of two.
TEST(TcpMesh, EveryCollectiveOfSevenRanks) {
  constexpr int kRanks = 7;
  BackendRanks group(subject(kRanks));
  group.on_all([&](int rank) {
    std::uint64_t sequence = 0;
    for (int kind = 0; kind <= static_cast<int>(OperationKind::barrier); ++kind) {
      for (const std::size_t count : {3, 5'000, 400'000}) {
        const CheckedCall call({.kind = static_cast<OperationKind>(kind),
                                .count = kind > 2 ? count / kRanks + 1 : count,
                                .root = static_cast<int>(count % kRanks),
                                .in_place = kind % 2 == 0,
                                .seed = count},
                               kRanks, rank, ++sequence);
        const testing::Ended ended = run(group.at(rank), call.operation());
        ASSERT_EQ(ended.outcome, Outcome::ok) << call.operation().description() << ": " << ended.failure.cause;
        call.check();
      }
    }
  });
}

TEST(TcpMesh, ManyRanksMeetInTime) {
  constexpr int kRanks = 32;
  BackendRanks group(subject(kRanks));
  const auto start = std::chrono::steady_clock::now();
  group.on_all([&](int rank) { all_reduce(group.at(rank), kRanks, rank, 1, 10); });
  const auto first = std::chrono::steady_clock::now() - start;
  group.on_all([&](int rank) { all_reduce(group.at(rank), kRanks, rank, 2, 50'000); });
  RecordProperty("first_collective_us",
                 static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(first).count()));
}

TEST(TcpMesh, WaitsForDescriptors) {
#ifdef DDP_ADDRESS_SANITIZER
  GTEST_SKIP() << "checks of virtual calls need a descriptor themselves (UBSan's vptr)";
#endif
  BackendRanks group(subject(2));
  std::atomic<bool> waiting{false};
  std::optional<ddp::test::NoDescriptorsLeft> none(std::in_place);
  std::thread relief([&] {
    while (!waiting) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    none.reset();
  });
  group.on_all([&](int rank) {
    waiting = true;
    all_reduce(group.at(rank), 2, rank, 1, 10);
  });
  relief.join();
}

/// A rank that had no descriptor for the one connection that came accepts it later, though nothing else happens.
TEST(TcpMesh, AcceptsWhatItHadNoDescriptorFor) {
#ifdef DDP_ADDRESS_SANITIZER
  GTEST_SKIP() << "checks of virtual calls need a descriptor themselves (UBSan's vptr)";
#endif
  BackendRanks group(subject(2));
  std::vector<float> values{1, 2, 3};
  const Operation send = message(OperationKind::send, 1, 1, values);
  const Operation receive = message(OperationKind::recv, 0, 1, values);
  Request& sending = group.at(0).init({&send, 1}, soon());
  Request& receiving = group.at(1).init({&receive, 1}, soon());
  sending.post();
  for (int i = 0; i < 100; ++i) sending.poll();  // it is connected, and waits to be accepted
  std::optional<ddp::test::NoDescriptorsLeft> none(std::in_place);
  receiving.post();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(receiving.poll(), Outcome::running);
  none.reset();
  while (receiving.poll() == Outcome::running) {
    sending.poll();
    group.at(1).rest(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(receiving.poll(), Outcome::ok) << receiving.failure().cause;
  EXPECT_EQ(sending.poll(), Outcome::ok);
  sending.release();
  receiving.release();
}

/// Its host has closed the connection before it welcomed the rank, and the reset was lost.
TEST(TcpMesh, AConnectionThatTheOtherHostForgotIsMadeAgain) {
  const base::UniqueFd other = base::listen_tcp("127.0.0.1");
  BackendConfig config;
  config.size = 2;
  config.interface_address = "127.0.0.1";
  const auto backend = make_backend(config);
  RankRecord record{.address = "127.0.0.1", .port = base::local_port(other.get())};
  backend->connect({backend->address(), encode(record)}, soon());
  std::vector<float> values{1};
  const Operation send = message(OperationKind::send, 1, 1, values);
  Request& sending = backend->init({&send, 1}, soon());
  sending.post();
  const auto accept = [&] {
    pollfd waiting{other.get(), POLLIN, 0};
    while (::poll(&waiting, 1, 1) == 0) {
      if (sending.poll() != Outcome::running) return base::UniqueFd{};
    }
    return base::UniqueFd{::accept(other.get(), nullptr, nullptr)};
  };
  base::UniqueFd first = accept();
  ASSERT_TRUE(first);
  std::array<std::byte, kHelloBytes> hello{};
  for (pollfd waiting{first.get(), POLLIN, 0}; ::poll(&waiting, 1, 1) == 0;) sending.poll();
  ASSERT_EQ(::recv(first.get(), hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  const int on = 1;  // a connection under repair is closed without a word
  if (::setsockopt(first.get(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) != 0) GTEST_SKIP() << "needs CAP_NET_ADMIN";
  first.reset();
  EXPECT_TRUE(accept()) << sending.failure().cause;
  backend->abort();
  sending.poll();
  sending.release();
}

/// A rank of a large job must not be made to keep 512 KiB for each of the others.
TEST(EagerWindow, OfAllPeersTogetherIsBounded) {
  constexpr std::size_t kMiB = std::size_t{1} << 20U;
  EXPECT_EQ(eager_window_bytes(1), kMiB / 2);
  EXPECT_EQ(eager_window_bytes(2), kMiB / 2);
  for (const int size : {8, 100, 129, 130, 1000, 4000}) {
    EXPECT_LE(eager_window_bytes(size) * static_cast<std::size_t>(size - 1), 64 * kMiB) << size;
  }
  EXPECT_EQ(eager_window_bytes(100'000), kMiB / 64);
}

}  // namespace
}  // namespace ddp::collectives::tcp
