// The soft limit of open files follows what is needed, within the hard one.
#include "base/unique_fd.hpp"

#include <sys/resource.h>

namespace ddp::base {
namespace {

/// In a child with these limits: its exit status.
int status_within(rlim_t soft, rlim_t hard, const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
    ::_exit(::setrlimit(RLIMIT_NOFILE, &limit) == 0 && body() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

rlim_t soft_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

TEST(OpenFileLimit, IsRaisedWhereMoreAreNeeded) {
  EXPECT_EQ(status_within(200, 1000,
                          [] {
                            allow_open_files(10);
                            if (soft_limit() != 200) return false;
                            allow_open_files(500);
                            for (int i = 0; i < 500; ++i) {
                              if (::open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) return false;
                            }
                            return soft_limit() < 1000;
                          }),
            0);
}

TEST(OpenFileLimit, IsRaisedToTheHardLimitAtMost) {
  EXPECT_EQ(status_within(100, 300,
                          [] {
                            allow_open_files(5000);
                            return soft_limit() == 300;
                          }),
            0);
}

/// As of a program that has used up all.
TEST(OpenFileLimit, IsRaisedWhereNoneIsLeft) {
  EXPECT_EQ(status_within(50, 300,
                          [] {
                            while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) continue;
                            allow_open_files(5);
                            return ::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0;
                          }),
            0);
}

}  // namespace
}  // namespace ddp::base
