// The TCPStore client against PyTorch's own servers, and against servers that misbehave.
#include "kvs/tcp_store_client.hpp"

#include <sys/socket.h>

#include "base/byte_stream.hpp"
#include "base/socket.hpp"
#include "unit/kvs/rank_threads.hpp"
#include "unit/kvs/torch_store_server.hpp"

namespace ddp::kvs {
namespace {

using test::awkward_value;
using test::error_of;
using test::run_ranks;
using test::soon;
using test::thrown_by;

struct TorchStore : testing::TestWithParam<bool> {
  static void SetUpTestSuite() {
    if (!server_) server_ = std::make_unique<test::TorchStoreServer>();
  }
  static void TearDownTestSuite() { server_.reset(); }

  void SetUp() override {
    if (!server_->missing().empty()) GTEST_SKIP() << server_->missing();
  }
  // Every test has a prefix of its own, as every attempt of a job has.
  std::unique_ptr<TcpStoreClient> join(int rank, int size) {
    return std::make_unique<TcpStoreClient>("127.0.0.1", server_->port(GetParam()), rank, size,
                                            testing::UnitTest::GetInstance()->current_test_info()->name(), soon());
  }

  static inline std::unique_ptr<test::TorchStoreServer> server_;
};
INSTANTIATE_TEST_SUITE_P(Servers, TorchStore, testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "libuv" : "plain"; });

TEST_P(TorchStore, CarriesValuesOfAnyBytesAndSize) {
  constexpr int kRanks = 4;
  run_ranks(kRanks, [&](int rank) {
    const auto store = join(rank, kRanks);
    for (const std::size_t size : test::kAwkwardSizes) store->put(fmt::format("k{}", size), awkward_value(rank, size));
    store->fence(soon());
    for (int peer = 0; peer < kRanks; ++peer) {
      for (const std::size_t size : test::kAwkwardSizes) {
        EXPECT_EQ(store->get(peer, fmt::format("k{}", size), soon()), awkward_value(peer, size)) << size;
      }
    }
  });
}

TEST_P(TorchStore, CarriesValuesAboveTheServersLimit) {
  const auto store = join(0, 1);
  constexpr std::size_t kSize = 9 * 1024 * 1024 + 7;
  store->put("large", awkward_value(0, kSize));
  store->fence(soon());
  EXPECT_EQ(store->get(0, "large", soon()), awkward_value(0, kSize));
}

// More ranks than a page has, in one thread: what each has put is there when it has got it.
TEST_P(TorchStore, AllRanksValuesComeInPages) {
  constexpr int kRanks = TcpStoreClient::kPageRanks + 2;
  constexpr int kOdd = TcpStoreClient::kPageRanks;
  constexpr std::size_t kInParts = 5 * 1024 * 1024;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto store = join(rank, kRanks);
    store->put("k", awkward_value(rank, 100));
    if (rank != kOdd) store->put("one-lacks-it", {});
    store->put("one-in-parts", awkward_value(rank, rank == kOdd ? kInParts : 10));
    EXPECT_FALSE(store->get(rank, "one-in-parts", soon()).empty());
  }
  const auto store = join(0, kRanks);
  const std::vector<Bytes> values = store->get_all("k", soon());
  const std::vector<Bytes> parted = store->get_all("one-in-parts", soon());
  ASSERT_EQ(values.size(), kRanks);
  ASSERT_EQ(parted.size(), kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    EXPECT_EQ(values[place], awkward_value(rank, 100));
    EXPECT_EQ(parted[place], awkward_value(rank, rank == kOdd ? kInParts : 10));
  }
  const Error error = thrown_by([&] { store->get_all("one-lacks-it", soon()); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.attempted(), testing::HasSubstr(fmt::format("of rank {} ", kOdd)));
  EXPECT_EQ(store->get_all("k", soon()).size(), kRanks) << "it is still usable";
}

TEST_P(TorchStore, CarriesManyKeysOverManyFences) {
  constexpr int kRanks = 3;
  run_ranks(kRanks, [&](int rank) {
    const auto store = join(rank, kRanks);
    for (int round = 0; round < 20; ++round) {
      for (int i = 0; i < 50; ++i) store->put(fmt::format("r{}.{}", round, i), awkward_value(rank + i, 12));
      store->fence(soon());
      for (int i = 0; i < 50; ++i) {
        const int peer = i % kRanks;
        EXPECT_EQ(store->get(peer, fmt::format("r{}.{}", round, i), soon()), awkward_value(peer + i, 12));
      }
    }
  });
}

TEST_P(TorchStore, MissingKeyIsNotFoundAtOnce) {
  const auto store = join(0, 1);
  store->fence(soon());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(error_of([&] { store->get(0, "never-put", soon()); })->code(), ErrorCode::not_found);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::kBusyMachine);
  store->put("empty", {});
  store->fence(soon());
  EXPECT_TRUE(store->get(0, "empty", soon()).empty());
}

TEST_P(TorchStore, NamesExactlyTheRanksThatDidNotArrive) {
  constexpr int kRanks = 8;
  std::atomic<int> told = 0;
  run_ranks(kRanks, [&](int rank) {
    const auto store = join(rank, kRanks);
    store->fence(soon());
    if (rank == 0 || rank == 6) {
      while (told < kRanks - 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    const Deadline deadline = soon(8000);
    const auto error = error_of([&] { store->fence(deadline); });
    EXPECT_LT(Deadline::Clock::now(), deadline.when() + test::kBusyMachine);
    ++told;
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::timeout);
    EXPECT_THAT(error->ranks(), ElementsAre(0, 6)) << error->what();
    EXPECT_EQ(error_of([&] { store->put("later", {}); })->code(), ErrorCode::unavailable);
  });
}

TEST_P(TorchStore, PrefixSeparatesAttempts) {
  const auto port = server_->port(GetParam());
  TcpStoreClient first{"127.0.0.1", port, 0, 1, "separate/0", soon()};
  first.put("k", awkward_value(1, 10));
  first.fence(soon());
  TcpStoreClient second{"127.0.0.1", port, 0, 1, "separate/1", soon()};
  second.fence(soon());
  EXPECT_EQ(error_of([&] { second.get(0, "k", soon()); })->code(), ErrorCode::not_found);
  EXPECT_EQ(first.get(0, "k", soon()), awkward_value(1, 10));
  // A prefix that is used again is noticed, since one rank too many arrives.
  TcpStoreClient again{"127.0.0.1", port, 0, 1, "separate/0", soon()};
  EXPECT_EQ(error_of([&] { again.fence(soon()); })->code(), ErrorCode::protocol);
}

TEST_P(TorchStore, CloseIsIdempotentAndFinal) {
  const auto store = join(0, 1);
  store->close();
  store->close();
  EXPECT_EQ(error_of([&] { store->put("k", {}); })->code(), ErrorCode::unavailable);
  EXPECT_EQ(error_of([&] { store->get(0, "k", soon()); })->code(), ErrorCode::unavailable);
}

// A server in a thread, at the other end of a socket pair, that follows a script and then stops.
class BrokenServer {
 public:
  explicit BrokenServer(std::function<void(int fd)> behaviour) {
    std::array<int, 2> pair{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) throw std::runtime_error("socketpair");
    client_.reset(pair[0]);
    ::fcntl(client_.get(), F_SETFL, O_NONBLOCK);
    thread_ = std::thread([behaviour = std::move(behaviour), server = base::UniqueFd{pair[1]}, this]() mutable {
      behaviour(server.get());
      while (!stop_) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
  }
  ~BrokenServer() {
    stop_ = true;
    thread_.join();
  }
  TcpStoreClient join(int ms = 300) { return {std::move(client_), "test", 0, 2, "p", soon(ms)}; }

 private:
  base::UniqueFd client_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

void read_bytes(int fd, std::size_t count, void* into = nullptr) {
  std::vector<char> bytes(count);
  for (std::size_t got = 0; got < count;) {
    const ssize_t n = ::read(fd, bytes.data() + got, count - got);
    if (n <= 0) return;
    got += static_cast<std::size_t>(n);
  }
  if (into != nullptr) std::memcpy(into, bytes.data(), count);
}

template <class Value>
void write_value(int fd, Value value) {
  ::send(fd, &value, sizeof value, MSG_NOSIGNAL);
}

// VALIDATE: 1 + 4 bytes. PING: 1 + 4. ADD: 1 + 8 + 5 ("init/") + 8.
void answer_joining(int fd) {
  std::uint32_t nonce = 0;
  read_bytes(fd, 6);
  read_bytes(fd, 4, &nonce);
  write_value(fd, nonce);
  read_bytes(fd, 22);
  write_value(fd, std::int64_t{1});
}

// CHECK of "/p/0/k": 1 + 8 + 8 + 6 bytes. GET: 1 + 8 + 6.
void answer_check(int fd) {
  read_bytes(fd, 23);
  write_value(fd, std::uint8_t{0});
}

std::optional<Error> getting_error(std::function<void(int fd)> behaviour) {
  BrokenServer server{std::move(behaviour)};
  TcpStoreClient store = server.join();
  const auto begin = std::chrono::steady_clock::now();
  auto error = error_of([&] { store.get(0, "k", soon(200)); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::kBusyMachine);
  // An answer that comes late must not pass for that of another request.
  EXPECT_EQ(error_of([&] { store.get(0, "k", soon(200)); })->code(), ErrorCode::unavailable);
  return error;
}

TEST(TcpStoreClient, NobodyListens) {
  std::uint16_t port = 0;
  {
    const auto listener = base::listen_tcp("127.0.0.1");
    port = base::local_port(listener.get());
  }
  const Error error = thrown_by([&] { TcpStoreClient("127.0.0.1", port, 0, 1, "p", soon(300)); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.native(), "ECONNREFUSED (111)");
}

TEST(TcpStoreClient, SilentServerEndsAtTheDeadline) {
  BrokenServer server{[](int) {}};
  const Deadline deadline = soon(300);
  EXPECT_EQ(error_of([&] { server.join(300); })->code(), ErrorCode::timeout);
  EXPECT_LT(Deadline::Clock::now(), deadline.when() + test::kBusyMachine);
  EXPECT_EQ(getting_error([](int fd) { answer_joining(fd); })->code(), ErrorCode::timeout);
}

TEST(TcpStoreClient, WrongEchoIsAProtocolError) {
  BrokenServer server{[](int fd) { write_value(fd, std::uint32_t{0x20505448}); }};
  // The client chose its number at random; that it is this one has a probability of 2^-32.
  EXPECT_EQ(error_of([&] { server.join(); })->code(), ErrorCode::protocol);
}

TEST(TcpStoreClient, WhoIsRefusedIsToldWhomAStoreServes) {
  BrokenServer server{[](int fd) { ::shutdown(fd, SHUT_RDWR); }};
  const Error error = thrown_by([&] { server.join(); });
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_THAT(error.hint(), testing::HasSubstr("only processes of the job's user"));
}

TEST(TcpStoreClient, HugeLengthIsRefusedBeforeItIsAllocated) {
  const auto error = getting_error([](int fd) {
    answer_joining(fd);
    answer_check(fd);
    write_value(fd, std::uint64_t{1} << 60);
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::protocol);
}

TEST(TcpStoreClient, ServerThatClosesMidAnswerIsLost) {
  const auto error = getting_error([](int fd) {
    answer_joining(fd);
    answer_check(fd);
    write_value(fd, std::uint64_t{100});
    write_value(fd, std::uint64_t{7});
    ::shutdown(fd, SHUT_RDWR);
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::peer_lost);
}

TEST(TcpStoreClient, APageOfWhichOnlyAPartComesEndsAtTheDeadline) {
  BrokenServer server{[](int fd) {
    answer_joining(fd);
    // CHECK of "/p/0/k" and "/p/1/k": 1 + 8 + 2 x (8 + 6) bytes. MULTI_GET: the same.
    read_bytes(fd, 37);
    write_value(fd, std::uint8_t{0});
    read_bytes(fd, 37);
    write_value(fd, std::uint64_t{1});
    write_value(fd, 'x');
  }};
  TcpStoreClient store = server.join();
  EXPECT_EQ(error_of([&] { store.get_all("k", soon(300)); })->code(), ErrorCode::timeout);
  EXPECT_EQ(error_of([&] { store.get_all("k", soon(300)); })->code(), ErrorCode::unavailable);
}

TEST(TcpStoreClient, UnknownAnswerIsAProtocolError) {
  const auto error = getting_error([](int fd) {
    answer_joining(fd);
    read_bytes(fd, 23);
    write_value(fd, std::uint8_t{9});
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::protocol);
}

TEST(TcpStoreClient, ServerThatFallsSilentInAFenceEndsAtTheDeadline) {
  BrokenServer server{[](int fd) {
    answer_joining(fd);
    // SET "/p/fence/1/0" = "1": 1 + 8 + 12 + 8 + 1. ADD "/p/fence/1/arrived": 1 + 8 + 18 + 8.
    read_bytes(fd, 65);
    write_value(fd, std::int64_t{1});
  }};
  TcpStoreClient store = server.join();
  const Deadline deadline = soon(400);
  EXPECT_EQ(error_of([&] { store.fence(deadline); })->code(), ErrorCode::timeout);
  EXPECT_LT(Deadline::Clock::now(), deadline.when() + test::kBusyMachine);
}

TEST(TcpStoreClient, RefusesImpossibleRanks) {
  for (const auto& [rank, size] : {std::pair{2, 2}, {-1, 2}, {0, 0}}) {
    const Error error = thrown_by(
        [&, rank = rank, size = size] { TcpStoreClient(base::UniqueFd{}, "test", rank, size, "p", soon(100)); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace ddp::kvs
