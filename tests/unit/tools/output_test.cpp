// Whatever cannot be written to standard output is an error.
#include "command/output.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "base/unique_fd.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

using test::error_of;
using testing::HasSubstr;

/// Runs @p action with standard output at @p fd.
template <class Action>
std::optional<Error> error_with_stdout_at(int fd, Action action) {
  const base::UniqueFd saved{::dup(STDOUT_FILENO)};
  EXPECT_GE(::dup2(fd, STDOUT_FILENO), 0);
  auto error = error_of(action);
  EXPECT_GE(::dup2(saved.get(), STDOUT_FILENO), 0);
  return error;
}

TEST(Output, StandardOutputThatIsFullOrClosed) {
  const base::UniqueFd full{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
  const auto no_space = error_with_stdout_at(full.get(), [] { write_standard_output("x"); });
  ASSERT_TRUE(no_space);
  EXPECT_THAT(no_space->what(), HasSubstr("ENOSPC"));

  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[0]);
  const base::UniqueFd writing{ends[1]};
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  const auto closed = error_with_stdout_at(writing.get(), [] { write_standard_output("x"); });
  std::signal(SIGPIPE, before);
  ASSERT_TRUE(closed);
  EXPECT_THAT(closed->what(), HasSubstr("EPIPE"));
}

}  // namespace
}  // namespace ddp::tools
