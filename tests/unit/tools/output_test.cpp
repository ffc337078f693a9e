// Files are replaced whole or not at all, and whatever cannot be written is an error.
#include "command/output.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/unique_fd.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::HasSubstr;

class Output : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ddp_output.XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string content(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(Output, WritesAndReplaces) {
  write_file(path("a"), "one");
  EXPECT_EQ(content(path("a")), "one");
  ASSERT_EQ(::chmod(path("a").c_str(), 0640), 0);
  struct stat before {};
  ASSERT_EQ(::stat(path("a").c_str(), &before), 0);
  write_file(path("a"), "two");
  EXPECT_EQ(content(path("a")), "two");
  struct stat after {};
  ASSERT_EQ(::stat(path("a").c_str(), &after), 0);
  EXPECT_NE(before.st_ino, after.st_ino) << "not replaced by another file";
  EXPECT_EQ(after.st_mode & 0777U, 0640U);
  EXPECT_EQ(files(), 1U);
}

TEST_F(Output, ASymbolicLinkStaysOne) {
  write_file(path("a"), "one");
  fs::create_symlink("a", path("link"));
  write_file(path("link"), "two");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(content(path("a")), "two");
}

TEST_F(Output, AFailureLeavesTheOldFileAndNoOther) {
  write_file(path("a"), "one");
  const auto folder = error_of([&] { write_file(folder_.string(), "x"); });
  ASSERT_TRUE(folder);
  EXPECT_THAT(folder->what(), HasSubstr("EISDIR"));
  const auto missing = error_of([&] { write_file(path("no/file"), "x"); });
  ASSERT_TRUE(missing);
  EXPECT_THAT(missing->what(), HasSubstr("ENOENT"));
  EXPECT_THAT(missing->what(), HasSubstr("the folder must exist"));
  EXPECT_EQ(content(path("a")), "one");
  EXPECT_EQ(files(), 1U);
}

TEST_F(Output, DevicesAreWrittenToAndNotReplaced) {
  write_file("/dev/null", "x");
  struct stat facts {};
  ASSERT_EQ(::stat("/dev/null", &facts), 0);
  EXPECT_TRUE(S_ISCHR(facts.st_mode));
  const auto full = error_of([] { write_file("/dev/full", "x"); });
  ASSERT_TRUE(full);
  EXPECT_THAT(full->what(), HasSubstr("ENOSPC"));
}

/// Runs @p action with standard output at @p fd.
template <class Action>
std::optional<Error> error_with_stdout_at(int fd, Action action) {
  const base::UniqueFd saved{::dup(STDOUT_FILENO)};
  EXPECT_GE(::dup2(fd, STDOUT_FILENO), 0);
  auto error = error_of(action);
  EXPECT_GE(::dup2(saved.get(), STDOUT_FILENO), 0);
  return error;
}

TEST_F(Output, StandardOutputThatIsFullOrClosed) {
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
