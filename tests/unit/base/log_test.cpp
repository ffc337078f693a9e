// Which lines are written, by DDP_LOG_LEVEL, and how they look. The level is read once per process, so each case runs
// in a process of its own.
#include "base/log.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "base/unique_fd.hpp"

namespace ddp::base {
namespace {

/// What a child that logs one line of each level writes to standard error.
std::string output_at(const char* level, int rank = -1) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "no pipe";
  UniqueFd read_end{ends[0]};
  UniqueFd write_end{ends[1]};
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(write_end.get(), STDERR_FILENO);
    if (level != nullptr) {
      ::setenv("DDP_LOG_LEVEL", level, 1);
    } else {
      ::unsetenv("DDP_LOG_LEVEL");
    }
    if (rank >= 0) set_log_rank(rank);
    log(LogLevel::debug, "line {}", 1);
    log(LogLevel::info, "line {}", 2);
    log(LogLevel::warning, "line {}", 3);
    log(LogLevel::error, "line {}", 4);
    ::_exit(log_enabled(LogLevel::error) ? 0 : 1);
  }
  write_end.reset();
  std::string text;
  std::array<char, 1024> chunk{};
  for (ssize_t got = 0; (got = ::read(read_end.get(), chunk.data(), chunk.size())) > 0;) {
    text.append(chunk.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return text;
}

constexpr auto kDebug = "[ddp] debug: line 1\n";
constexpr auto kInfo = "[ddp] info: line 2\n";
constexpr auto kWarning = "[ddp] warning: line 3\n";
constexpr auto kError = "[ddp] error: line 4\n";

TEST(Log, LevelDecidesWhatIsWritten) {
  EXPECT_EQ(output_at("debug"), std::string(kDebug) + kInfo + kWarning + kError);
  EXPECT_EQ(output_at("info"), std::string(kInfo) + kWarning + kError);
  EXPECT_EQ(output_at("warning"), std::string(kWarning) + kError);
  EXPECT_EQ(output_at("error"), kError);
  EXPECT_EQ(output_at("off"), "");
}

TEST(Log, WarningsAreWrittenWithoutAnyLevelAndWithABadOne) {
  EXPECT_EQ(output_at(nullptr), std::string(kWarning) + kError);
  EXPECT_EQ(output_at(""), std::string(kWarning) + kError);
  EXPECT_EQ(output_at("loud"), std::string(kWarning) + kError);
}

TEST(Log, LinesNameTheRankOnceItIsKnown) { EXPECT_EQ(output_at("error", 17), "[ddp rank 17] error: line 4\n"); }

}  // namespace
}  // namespace ddp::base
