// The owner of a descriptor closes it exactly once.
#include <poll.h>
#include <sys/socket.h>

#include "base/unique_fd.hpp"

namespace ddp::base {
namespace {

int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(UniqueFd, ClosesAtTheEnd) {
  int number = -1;
  {
    const UniqueFd fd{open_null()};
    number = fd.get();
    EXPECT_TRUE(fd);
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
  EXPECT_FALSE(UniqueFd{});
}

TEST(UniqueFd, MovingHandsItOver) {
  UniqueFd first{open_null()};
  const int number = first.get();
  UniqueFd second{std::move(first)};
  EXPECT_EQ(first.get(), -1);  // NOLINT(bugprone-use-after-move): the state after a move is what is tested
  EXPECT_EQ(second.get(), number);
  UniqueFd third{open_null()};
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_TRUE(is_open(number));
  UniqueFd& same = third;
  third = std::move(same);
  EXPECT_TRUE(is_open(number)) << "assigning to itself must not close it";
}

TEST(UniqueFd, ReleaseGivesItUp) {
  UniqueFd fd{open_null()};
  const int number = fd.release();
  EXPECT_FALSE(fd);
  fd.reset();
  EXPECT_TRUE(is_open(number));
  ::close(number);
}

struct UnsharedPair {
  UnsharedFd mine;
  UniqueFd theirs;
};

UnsharedPair make_unshared() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {.mine = UnsharedFd{UniqueFd{ends[0]}}, .theirs = UniqueFd{ends[1]}};
}

bool has_ended(const UniqueFd& end) {
  char byte = 0;
  return ::recv(end.get(), &byte, 1, 0) == 0;
}

/// What @p call returns in a forked child.
template <class Call>
bool in_child(Call&& call) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(call() ? 1 : 0);
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 1;
}

TEST(UnsharedFd, EndsWithItsProcessAlthoughChildrenLiveOn) {
  UnsharedPair pair = make_unshared();
  int begun[2];
  int hold[2];
  ASSERT_EQ(::pipe2(begun, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(hold, O_CLOEXEC), 0);
  char byte = 'x';
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(hold[1]);
    if (::write(begun[1], &byte, 1) != 1) ::_exit(1);
    ::_exit(::read(hold[0], &byte, 1) == 0 ? 0 : 1);
  }
  ASSERT_EQ(::read(begun[0], &byte, 1), 1);
  EXPECT_FALSE(has_ended(pair.theirs));
  pair.mine.reset();
  EXPECT_TRUE(has_ended(pair.theirs));
  for (const int end : {begun[0], begun[1], hold[0], hold[1]}) ::close(end);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(UnsharedFd, AChildHasTheNumberButNotTheConnection) {
  UnsharedPair pair = make_unshared();
  EXPECT_TRUE(in_child([&] { return ::fcntl(pair.mine.get(), F_GETFD) == FD_CLOEXEC; }));
  EXPECT_TRUE(in_child([&] { return ::send(pair.mine.get(), "x", 1, MSG_NOSIGNAL) < 0; }));
  EXPECT_EQ(::send(pair.mine.get(), "x", 1, MSG_NOSIGNAL), 1) << "the process itself has both";
}

TEST(UnsharedFd, IsUnsharedWhereverItIsMovedTo) {
  UnsharedPair pair = make_unshared();
  UnsharedFd moved(std::move(pair.mine));
  UnsharedFd assigned;
  assigned = std::move(moved);
  EXPECT_FALSE(moved);
  EXPECT_TRUE(in_child([&] { return ::send(assigned.get(), "x", 1, MSG_NOSIGNAL) < 0; }));
}

TEST(UnsharedFd, ANumberThatTheProgramHasTakenForAnotherFileStaysThatFile) {
  UnsharedPair pair = make_unshared();
  const int number = pair.mine.get();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(number);  // as a program does that closes all, to become a daemon
  ASSERT_EQ(::dup2(ends[1], number), number);
  EXPECT_TRUE(in_child([&] { return ::write(number, "x", 1) == 1; }));
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 1);
  for (const int end : ends) ::close(end);
}

TEST(UnsharedFd, ItsNumberIsAnOrdinaryOneAgainOnceItIsClosed) {
  UnsharedPair pair = make_unshared();
  const int number = pair.mine.get();
  pair.mine.reset();
  EXPECT_TRUE(has_ended(pair.theirs));
  ASSERT_EQ(::fcntl(pair.theirs.get(), F_DUPFD_CLOEXEC, number), number);
  const UniqueFd again{number};
  EXPECT_FALSE(in_child([&] { return ::recv(again.get(), nullptr, 0, MSG_DONTWAIT) != 0; }))
      << "a child sees the end of the connection, which an unconnected socket does not have";
}

TEST(UnsharedFd, MayBeEmpty) {
  const UnsharedFd none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.get(), -1);
  EXPECT_FALSE(UnsharedFd{UniqueFd{-1}});
}

}  // namespace

// A descriptor that stays readable until it is cleared, however often it was rung.

namespace {

bool readable(const WakeEvent& event, int timeout_ms = 0) {
  pollfd entry{.fd = event.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

TEST(WakeEvent, IsReadableFromRingToClear) {
  const WakeEvent event;
  EXPECT_FALSE(readable(event));
  event.ring();
  event.ring();
  EXPECT_TRUE(readable(event));
  EXPECT_TRUE(readable(event));
  event.clear();
  EXPECT_FALSE(readable(event));
  event.clear();  // does not block
}

TEST(WakeEvent, WakesAnotherThread) {
  const WakeEvent event;
  std::thread ringing([&] { event.ring(); });
  EXPECT_TRUE(readable(event, 60'000));
  ringing.join();
}

}  // namespace

}  // namespace ddp::base
