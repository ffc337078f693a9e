// A stranger at a rank's port, without the job's secrets, changes nothing, whenever it comes and whatever it does.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/message.hpp"
#include "base/socket.hpp"
#include "collectives/tcp/handshake.hpp"
#include "collectives/tcp/tcp_backend.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/collectives/checked_call.hpp"

namespace ddp::collectives::tcp {
namespace {

/// What is sent first by who knows no secret.
Bytes greeting(std::uint32_t from, std::uint32_t to) {
  Bytes bytes = encode(kProtocol, stream::Greeting{.version = kProtocol.version, .key = stream::random_bytes()});
  const Bytes opening = base::encode(Opening{.from = from, .to = to});
  bytes.insert(bytes.end(), opening.begin(), opening.end());
  return bytes;
}
constexpr std::size_t kProofBytes = stream::kProofHeaderBytes + 32;
constexpr std::size_t kChallengeBytes = stream::kGreetingBytes + stream::kAnnouncementBytes + kProofBytes;

using testing::soon;

/// Two ranks of which strangers know addresses and ports, as /proc/net/tcp shows them.
struct TcpStrangers : ::testing::Test {
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
    base::UniqueFd fd =
        base::connect_tcp("127.0.0.1", base::decode<RankRecord>(addresses_.at(index(rank))).port, soon());
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
          const testing::CheckedCall call({.kind = OperationKind::all_reduce, .count = i == 2 ? 100'000U : 10U}, kRanks,
                                          rank, first + i);
          const testing::Ended ended = testing::run(*backends_[index(rank)], call.operation());
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
  const Bytes hello = greeting(0, 1);
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

/// A rank that polls, since it waits for a message of rank 2.
class Polling {
 public:
  explicit Polling(Backend& backend)
      : thread_([this, &backend] {
          std::vector<std::uint8_t> memory(8);
          Operation receive;
          receive.kind = OperationKind::recv;
          receive.dtype = DType::uint8;
          receive.root = 2;
          receive.count = memory.size();
          receive.output = memory;
          Request& request = backend.init({&receive, 1}, soon());
          request.post();
          while (!over_) request.poll();
          backend.abort();
          request.release();
        }) {}
  ~Polling() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

/// A process of user nobody that says @p first to a port, reads @p due bytes, says @p then, and is hung up on without
/// another byte. Only calls that are safe after a fork of a process with threads.
class OtherUser {
 public:
  OtherUser(std::uint16_t port, const Bytes& first, std::size_t due = 0, const Bytes& then = {}) : pid_(::fork()) {
    if (pid_ != 0) return;
    constexpr uid_t kNobody = 65534;
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(2);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ::_exit(3);
    [[maybe_unused]] ssize_t size = ::send(fd, first.data(), first.size(), MSG_NOSIGNAL);
    char bytes[256];
    if (due > 0 && ::recv(fd, bytes, due, MSG_WAITALL) != static_cast<ssize_t>(due)) ::_exit(4);
    size = ::send(fd, then.data(), then.size(), MSG_NOSIGNAL);
    ::_exit(::recv(fd, bytes, 1, 0) > 0 ? 1 : 0);
  }
  bool is_hung_up_on() const {
    int status = -1;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_;
};

/// It says that it is rank 0, gets a challenge, and has no answer to it but one of another time.
TEST_F(TcpStrangers, AnotherUserMayHoldTalkAndReplay) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  connect();
  const std::uint16_t port = base::decode<RankRecord>(addresses_[1]).port;
  {
    const Polling rank_1(*backends_[1]);
    const MeshIdentity identity(0, addresses_);
    const auto rank_0 = identity.connect(1);
    const Bytes hello = rank_0->answer();
    const base::UniqueFd interrupted = stranger(1, hello);
    Bytes challenge(kChallengeBytes);
    base::receive_exactly(interrupted.get(), challenge, soon(), "reading the challenge");
    for (std::span<const std::byte> rest{challenge}; !rest.empty();) {
      const auto piece = rest.first(rank_0->due());
      rank_0->take(piece);
      rest = rest.subspan(piece.size());
    }
    const Bytes proof = rank_0->answer();
    ASSERT_EQ(proof.size(), kProofBytes);
    const OtherUser replaying(port, hello, kChallengeBytes, proof);
    const OtherUser guessing(port, greeting(0, 1), kChallengeBytes, stream::with_length(Bytes(32, std::byte{1})));
    const OtherUser talking(port, Bytes(5000, std::byte{'G'}));
    const auto begin = std::chrono::steady_clock::now();
    const OtherUser holding(port, {});
    const OtherUser hesitating(port, Bytes(hello.begin(), hello.begin() + 20));
    EXPECT_TRUE(replaying.is_hung_up_on());
    EXPECT_TRUE(guessing.is_hung_up_on());
    EXPECT_TRUE(talking.is_hung_up_on());
    EXPECT_TRUE(holding.is_hung_up_on());
    EXPECT_TRUE(hesitating.is_hung_up_on());
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
  }
}

/// The challenge does not contain the secret, nor is it the same twice.
TEST_F(TcpStrangers, LearnNothingFromChallenges) {
  Admission admission("127.0.0.1");
  std::vector<Bytes> records = addresses_;
  const Key secret = random_key();
  records[1] = base::encode(RankRecord{.address = "127.0.0.1", .port = admission.port(), .secret = secret});
  const MeshIdentity identity(1, records);
  admission.begin(identity);
  std::vector<Bytes> challenges;
  for (int i = 0; i < 2; ++i) {
    const base::UniqueFd fd = base::connect_tcp("127.0.0.1", admission.port(), soon());
    base::send_all(fd.get(), greeting(0, 1), soon(), "asking");
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
  Admission admission("127.0.0.1");
  std::vector<Bytes> records = addresses_;
  records[1] = base::encode(RankRecord{.address = "127.0.0.1", .port = admission.port(), .secret = random_key()});
  const MeshIdentity identity(1, records);
  admission.begin(identity);
  std::vector<base::UniqueFd> held;
  for (std::size_t i = 0; i < (Admission::kMostStrangers + kRanks) * 3; ++i) {
    held.push_back(base::connect_tcp("127.0.0.1", admission.port(), soon()));
    EXPECT_TRUE(admission.advance().empty());
    EXPECT_LE(admission.num_unproven(), Admission::kMostStrangers + kRanks);
  }
}

}  // namespace
}  // namespace ddp::collectives::tcp
