// The owner of a descriptor closes it exactly once.
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ddp::base
