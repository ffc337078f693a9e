// Meshes shared by several backends, large groups, and few descriptors.
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/message.hpp"
#include "base/socket.hpp"
#include "collectives/tcp/context.hpp"
#include "collectives/tcp/handshake.hpp"
#include "collectives/tcp/host_probes.hpp"
#include "collectives/tcp/tcp_backend.hpp"
#include "support/error_of.hpp"
#include "support/no_descriptors_left.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/collectives/backend_transfer_contract.hpp"
#include "unit/collectives/checked_call.hpp"
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

/// As a hierarchy uses it: the leaders' collectives and all ranks' messages share connections.
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

/// Trees, chains and rounds with a number of ranks that is not a power of two.
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

/// A rank that lacked a descriptor for its only connection accepts it later, even if nothing else happens.
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

/// Its host closed the connection before it welcomed the rank, and the reset was lost.
TEST(TcpMesh, AConnectionThatTheOtherHostForgotIsMadeAgain) {
  const base::UniqueFd other = base::listen_tcp("127.0.0.1");
  BackendConfig config;
  config.size = 2;
  config.interface_address = "127.0.0.1";
  const auto backend = make_backend(config);
  RankRecord record{.address = "127.0.0.1", .port = base::local_port(other.get())};
  backend->connect({backend->address(), base::encode(record)}, soon());
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
  std::array<std::byte, stream::kGreetingBytes + kProtocol.opening_bytes> hello{};
  for (pollfd waiting{first.get(), POLLIN, 0}; ::poll(&waiting, 1, 1) == 0;) sending.poll();
  ASSERT_EQ(::recv(first.get(), hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  const int on = 1;  // a connection under repair is closed silently
  if (::setsockopt(first.get(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) != 0) GTEST_SKIP() << "needs CAP_NET_ADMIN";
  first.reset();
  EXPECT_TRUE(accept()) << sending.failure().cause;
  backend->abort();
  sending.poll();
  sending.release();
}

/// A rank of a large job must not have to keep 512 KiB for each other rank.
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

namespace ddp::collectives::testing {

// The TCP backend as every backend: ranks as threads, over loopback.

namespace {

/// Numbers of collectives and of announced messages continue from @p first_ordinal.
Subject subject(int size, std::uint64_t first_ordinal) {
  return {.name = "Tcp" + std::to_string(size),
          .create = [=](const BackendConfig& config) { return tcp::make_backend(config, first_ordinal); },
          .size = size,
          .many = 300};
}

INSTANTIATE_TEST_SUITE_P(Tcp, BackendContract,
                         ::testing::Values(subject(2, (std::uint64_t{1} << 32U) - 16),
                                           subject(3, std::uint64_t{0} - 16)),
                         subject_name);

}  // namespace

}  // namespace ddp::collectives::testing

// Connections that epoll refuses to watch for a while, as for lack of memory: they work, and are watched later.

namespace {

/// How many connections between ranks, open or opening, have been added; negative: none is refused.
std::atomic<int> refused{-1};

/// How many additions of listening or freshly accepted sockets to refuse.
std::atomic<int> refuse_readers{0};

}  // namespace

/// Replaces the C library's in this program.
extern "C" int epoll_ctl(int poller, int operation, int descriptor, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD && (event->events & (EPOLLRDHUP | EPOLLET)) != 0 && refused >= 0) {
    ++refused;
    errno = ENOMEM;
    return -1;
  }
  if (operation == EPOLL_CTL_ADD && event->events == EPOLLIN && refuse_readers.fetch_sub(1) > 0) {
    errno = ENOMEM;
    return -1;
  }
  static auto* const real = reinterpret_cast<decltype(&epoll_ctl)>(::dlsym(RTLD_NEXT, "epoll_ctl"));
  return real(poller, operation, descriptor, event);
}

namespace ddp::collectives::tcp {
namespace {

using testing::soon;

TEST(TcpWatching, WhatEpollHasRefusedIsWatchedLater) {
  testing::BackendRanks group(subject(2));
  refused = 0;
  group.on_all([&](int rank) { all_reduce(group.at(rank), 2, rank, 1, 10); });
  EXPECT_GT(refused, 0);
  refused = -1;
  std::atomic<bool> resting{false};
  group.on_all([&](int rank) {
    std::vector<float> values(10, 1);
    const Operation operation = message(rank == 0 ? OperationKind::recv : OperationKind::send, 1 - rank, 1, values);
    Request& request = group.at(rank).init({&operation, 1}, soon());
    if (rank == 0) {
      request.post();
      for (int i = 0; i < 10; ++i) EXPECT_EQ(request.poll(), Outcome::running);
      const auto begin = std::chrono::steady_clock::now();
      resting = true;
      group.at(rank).rest(seconds(30));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(15)) << "nothing has woken it";
    } else {
      while (!resting) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      request.post();
    }
    Outcome outcome = Outcome::running;
    for (const Deadline limit = soon(); outcome == Outcome::running && !limit.expired();) outcome = request.poll();
    EXPECT_EQ(outcome, Outcome::ok);
    request.release();
  });
}

TEST(TcpWatching, AConnectionThatCannotBeWatchedIsMadeAgain) {
  testing::BackendRanks group(subject(2));
  refuse_readers = 2;
  group.on_all([&](int rank) { all_reduce(group.at(rank), 2, rank, 1, 10); });
  EXPECT_LE(refuse_readers, 0) << "none has been refused";
  refuse_readers = 0;
}

TEST(TcpWatching, ARankThatCannotListenSaysSo) {
  refuse_readers = 1;
  const Error error = ddp::test::thrown_by([&] { testing::BackendRanks group(subject(2)); });
  EXPECT_EQ(error.code(), ErrorCode::system);
  EXPECT_EQ(error.detail().native, "ENOMEM (12)");
  refuse_readers = 0;
}

}  // namespace

// One connection to each host is probed, and another after it is closed.

namespace {

int option(int socket, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(socket, level, name, &value, &size), 0);
  return value;
}
bool is_probed(int socket) { return option(socket, SOL_SOCKET, SO_KEEPALIVE) == 1; }

TEST(HostProbes, OneConnectionToEachHostIsProbed) {
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  const auto connect = [&] {
    return base::connect_tcp("127.0.0.1", base::local_port(listener.get()), testing::soon());
  };
  const base::UniqueFd first = connect();
  const base::UniqueFd second = connect();
  const base::UniqueFd third = connect();
  const base::UniqueFd other = connect();
  HostProbes probes(std::chrono::seconds(20), 5);
  probes.attempt(second.get());
  EXPECT_TRUE(is_probed(second.get()));
  for (const base::UniqueFd* each : {&first, &second, &third}) probes.opened("10.0.0.1", each->get());
  probes.opened("10.0.0.2", other.get());
  const auto probed = [&] {
    return std::vector<bool>{is_probed(first.get()), is_probed(second.get()), is_probed(third.get()),
                             is_probed(other.get())};
  };
  EXPECT_EQ(probed(), (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(option(first.get(), IPPROTO_TCP, TCP_KEEPIDLE), 5);
  EXPECT_EQ(option(second.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 0) << "an attempt has one";
  probes.closed("10.0.0.1", second.get());
  EXPECT_EQ(probed(), (std::vector<bool>{true, false, false, true}));
  probes.closed("10.0.0.1", first.get());
  EXPECT_EQ(probed(), (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(option(third.get(), IPPROTO_TCP, TCP_KEEPIDLE), 5);
}

TEST(HostProbes, OfAMeshWhoseRanksLeave) {
  constexpr int kRanks = 4;
  std::vector<std::shared_ptr<TcpMesh>> meshes;
  testing::BackendRanks group({.name = "Tcp",
                               .create =
                                   [&](const BackendConfig& config) {
                                     meshes.push_back(make_mesh(config));
                                     return make_backend(meshes.back(), 1, {0, 1, 2, 3});
                                   },
                               .size = kRanks});
  std::vector<Bytes> addresses;
  for (const auto& mesh : meshes) addresses.push_back(mesh->address());
  for (const auto& mesh : meshes) mesh->connect(addresses);
  group.on_all([&](int rank) {
    const testing::CheckedCall call({.kind = OperationKind::all_to_all, .count = 10}, kRanks, rank, 1);
    ASSERT_EQ(testing::run(group.at(rank), call.operation()).outcome, Outcome::ok);
  });
  TcpMesh& mesh = *meshes.back();
  std::vector<int> left{0, 1, 2};
  while (!left.empty()) {
    std::vector<int> probed;
    for (const int rank : left) {
      if (is_probed(mesh.link(rank)->fd())) probed.push_back(rank);
    }
    ASSERT_EQ(probed.size(), 1U) << left.size();
    meshes[static_cast<std::size_t>(probed.front())]->close(testing::soon());
    for (const Deadline limit = testing::soon(); mesh.departed(probed.front()) == nullptr && !limit.expired();) {
      mesh.rest(std::chrono::milliseconds(1));
      mesh.progress();
    }
    std::erase(left, probed.front());
  }
  EXPECT_FALSE(mesh.failure());
}

}  // namespace

}  // namespace ddp::collectives::tcp
