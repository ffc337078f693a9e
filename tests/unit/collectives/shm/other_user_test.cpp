// The meeting of ranks believes no process of another user, even if it knows all of a job's secrets.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <ddp/error.hpp>

#include "base/message.hpp"
#include "base/process.hpp"
#include "base/unique_fd.hpp"
#include "collectives/shm/endpoint.hpp"
#include "collectives/shm/shm_backend.hpp"
#include "support/error_of.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/store_server/other_user.hpp"

namespace ddp::collectives::shm {
namespace {

using ddp::test::kOtherUser;

constexpr int kMinuteMs = 60'000;

std::unique_ptr<Backend> rank_of_two(int rank) {
  BackendConfig config;
  config.rank = rank;
  config.size = 2;
  return create(config);
}

/// What a process of another user does; it exits with the result, and tells the test by the descriptor.
class OtherUser {
 public:
  explicit OtherUser(const std::function<int(int tell)>& act) {
    int pipe[2];
    EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    hears_ = base::UniqueFd(pipe[0]);
    const base::UniqueFd tells(pipe[1]);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::setresuid(kOtherUser, kOtherUser, kOtherUser) != 0) ::_exit(2);
      ::prctl(PR_SET_DUMPABLE, 1);  // or its own /proc/self would be root's
      ::_exit(act(tells.get()));
    }
    process_ = base::ChildProcess{pid};
  }

  /// The next that it tells; empty after its end.
  Bytes hear() const {
    Bytes bytes(1000);
    const ssize_t size = ::read(hears_.get(), bytes.data(), bytes.size());
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    return bytes;
  }
  int exit_code() {
    EXPECT_TRUE(process_.wait(testing::soon()));
    return process_.end() ? process_.end()->code : -1;
  }

 private:
  base::UniqueFd hears_;
  base::ChildProcess process_;
};

struct ShmOtherUser : ::testing::Test {
  void SetUp() override {
    if (!ddp::test::can_be_other_user()) GTEST_SKIP() << "not root, who can become another user";
  }
};

TEST_F(ShmOtherUser, WithTheTokenIsNotTakenForARank) {
  const std::array<std::unique_ptr<Backend>, 2> ranks{rank_of_two(0), rank_of_two(1)};
  const std::vector<Bytes> addresses{ranks[0]->address(), ranks[1]->address()};
  OtherUser impostor([&](int tell) {
    const EndpointAddress leader = base::decode<EndpointAddress>(addresses[0]);
    const base::UniqueFd socket = connect_to(leader);
    JoinMessage hello{.kind = JoinMessage::Kind::hello, .rank = 1};
    hello.secret = leader.token;
    hello.bytes = std::uint64_t{1} << 30U;
    const auto packet = base::encode(hello);
    if (::send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0 || ::write(tell, "!", 1) != 1) return 3;
    pollfd answer{socket.get(), POLLIN, 0};
    if (::poll(&answer, 1, kMinuteMs) != 1) return 4;
    char byte = 0;
    return ::recv(socket.get(), &byte, 1, 0) > 0 ? 1 : 0;
  });
  ASSERT_EQ(impostor.hear().size(), 1U) << "it has not connected: " << impostor.exit_code();
  std::thread leader([&] { EXPECT_NO_THROW(ranks[0]->connect(addresses, testing::soon())); });
  EXPECT_NO_THROW(ranks[1]->connect(addresses, testing::soon()));
  leader.join();
  EXPECT_EQ(impostor.exit_code(), 0);
}

TEST_F(ShmOtherUser, AtTheLeadersAddressIsToldNothing) {
  OtherUser impostor([](int tell) {
    const Endpoint endpoint;
    const Bytes address = base::encode(endpoint.address());
    if (::write(tell, address.data(), address.size()) < 0) return 3;
    pollfd listener{endpoint.listener(), POLLIN, 0};
    if (::poll(&listener, 1, kMinuteMs) != 1) return 4;
    const base::UniqueFd socket(::accept(endpoint.listener(), nullptr, nullptr));
    char byte = 0;
    return ::recv(socket.get(), &byte, 1, 0) > 0 ? 1 : 0;
  });
  EndpointAddress leader = base::decode<EndpointAddress>(impostor.hear());
  ASSERT_EQ(leader.refusal, "");
  leader.user = ::geteuid();
  const std::unique_ptr<Backend> rank = rank_of_two(1);
  const Error error = ddp::test::thrown_by([&] {
    rank->connect({base::encode(leader), rank->address()}, testing::soon());
  });
  EXPECT_EQ(error.code(), ErrorCode::protocol);
  EXPECT_THAT(error.cause(), HasSubstr("another user listens at the leader's address"));
  EXPECT_EQ(impostor.exit_code(), 0);
}

}  // namespace
}  // namespace ddp::collectives::shm
