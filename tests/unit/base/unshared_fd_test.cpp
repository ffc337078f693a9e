#include "base/unshared_fd.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include <gtest/gtest.h>

namespace ddp::base {
namespace {

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
}  // namespace ddp::base
