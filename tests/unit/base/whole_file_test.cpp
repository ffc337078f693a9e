// Files are replaced whole or not at all, and whatever cannot be written is an error.
#include "base/whole_file.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "unit/kvs/rank_threads.hpp"

namespace ddp::base {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::HasSubstr;

class WholeFile : public testing::Test {
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

TEST_F(WholeFile, WritesAndReplaces) {
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

TEST_F(WholeFile, ASymbolicLinkStaysOne) {
  write_file(path("a"), "one");
  fs::create_symlink("a", path("link"));
  write_file(path("link"), "two");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(content(path("a")), "two");
}

TEST_F(WholeFile, AFailureLeavesTheOldFileAndNoOther) {
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

TEST_F(WholeFile, DevicesAreWrittenToAndNotReplaced) {
  write_file("/dev/null", "x");
  struct stat facts {};
  ASSERT_EQ(::stat("/dev/null", &facts), 0);
  EXPECT_TRUE(S_ISCHR(facts.st_mode));
  const auto full = error_of([] { write_file("/dev/full", "x"); });
  ASSERT_TRUE(full);
  EXPECT_THAT(full->what(), HasSubstr("ENOSPC"));
}

}  // namespace
}  // namespace ddp::base
