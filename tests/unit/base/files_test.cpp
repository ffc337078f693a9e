// Files are replaced whole or not at all, and whatever cannot be written is an error.
#include "base/files.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::base {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::thrown_by;

struct WholeFileTest : testing::Test {
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

TEST_F(WholeFileTest, WritesAndReplaces) {
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

TEST_F(WholeFileTest, ASymbolicLinkStaysOne) {
  write_file(path("a"), "one");
  fs::create_symlink("a", path("link"));
  write_file(path("link"), "two");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(content(path("a")), "two");
}

TEST_F(WholeFileTest, AFailureLeavesTheOldFileAndNoOther) {
  write_file(path("a"), "one");
  const Error folder = thrown_by([&] { write_file(folder_.string(), "x"); });
  EXPECT_THAT(folder.what(), HasSubstr("EISDIR"));
  const Error missing = thrown_by([&] { write_file(path("no/file"), "x"); });
  EXPECT_THAT(missing.what(), HasSubstr("ENOENT"));
  EXPECT_THAT(missing.what(), HasSubstr("the folder must exist"));
  EXPECT_EQ(content(path("a")), "one");
  EXPECT_EQ(files(), 1U);
}

TEST_F(WholeFileTest, APrivateOneIsForThisUserAlone) {
  const mode_t before = ::umask(0);
  write_file(base::WholeFile{.path = path("a"), .is_private = true}, "one");
  write_file(path("b"), "one");
  write_file(base::WholeFile{.path = path("b"), .is_private = true}, "two");
  ::umask(before);
  for (const char* name : {"a", "b"}) EXPECT_EQ(fs::status(path(name)).permissions(), fs::perms{0600}) << name;
}

TEST_F(WholeFileTest, WhatAKilledProcessOfTheSameNumberLeftIsNoObstacle) {
  for (int i = 0; i < 2; ++i) {
    NewFile left{path("a"), 0600};
    write_file(path("a"), "one");
    EXPECT_EQ(files(), 2U);
  }
}

TEST_F(WholeFileTest, LinksToOpenFilesAreWrittenToAndNotReplaced) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  fs::create_symlink("/proc/self/fd/" + std::to_string(ends[1]), path("link"));
  write_file(path("link"), "report");
  std::array<char, 16> got{};
  EXPECT_EQ(::read(ends[0], got.data(), got.size()), 6);
  EXPECT_TRUE(fs::is_symlink(path("link")));
  for (const int end : ends) ::close(end);
}

/// Where another user may write, too; this one is root.
class SharedFolder : public WholeFileTest {
 protected:
  static constexpr uid_t kOther = 12'002;
  void SetUp() override {
    WholeFileTest::SetUp();
    if (::geteuid() != 0) GTEST_SKIP() << "needs files of two users";
    fs::create_directory(path("home"));
    write_file(path("home/precious"), "mine");
    fs::create_directory(path("shared"));
    ASSERT_EQ(::chmod(path("shared").c_str(), 01777), 0);
    ASSERT_EQ(::chown(path("shared").c_str(), 12'003, 12'003), 0);
  }
  void link(const std::string& target, const std::string& name, uid_t owner) const {
    fs::create_symlink(target, path(name));
    ASSERT_EQ(::lchown(path(name).c_str(), owner, owner), 0);
  }
  void expect_refusal(const std::string& name) const {
    for (const bool check : {false, true}) {
      const base::WholeFile file{.path = path(name), .attempted = "writing the report"};
      const auto error = error_of([&] { check ? check_file(file) : write_file(file, "x"); });
      ASSERT_TRUE(error) << name;
      EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
      EXPECT_EQ(error->attempted(), "writing the report");
      EXPECT_THAT(error->cause(), HasSubstr("of user 12002"));
      EXPECT_THAT(error->hint(), HasSubstr("that only you may write to"));
    }
    EXPECT_TRUE(error_of([&] { open_to_append("opening the log", path(name)); })) << name;
    EXPECT_EQ(content(path("home/precious")), "mine");
  }
};

TEST_F(SharedFolder, LinksOfOthersAreNotFollowed) {
  link(path("home/precious"), "shared/report.json", kOther);
  expect_refusal("shared/report.json");
  link("../home", "shared/folder", kOther);
  expect_refusal("shared/folder/precious");
  expect_refusal("shared/folder/new");
  EXPECT_FALSE(fs::exists(path("home/new")));
  link("folder/precious", "shared/own", 0);  // leads to another's
  expect_refusal("shared/own");
  link("nowhere", "shared/dangling", kOther);
  expect_refusal("shared/dangling");
  EXPECT_FALSE(fs::exists(path("shared/nowhere")));
}

TEST_F(SharedFolder, LinksOfThisUserAndOfTheFoldersOwnerAre) {
  link("../home/precious", "shared/own", 0);
  write_file(path("shared/own"), "one");
  EXPECT_EQ(content(path("home/precious")), "one");
  link(path("home"), "shared/folder", 12'003);
  write_file(path("shared/folder/precious"), "two");
  EXPECT_EQ(content(path("home/precious")), "two");
  link("new", "shared/dangling", 0);
  write_file(path("shared/dangling"), "three");
  EXPECT_EQ(content(path("shared/new")), "three");
  EXPECT_TRUE(fs::is_symlink(path("shared/dangling")));
  fs::create_symlink("loop", path("loop"));
  EXPECT_THAT(error_of([&] { write_file(path("loop"), "x"); })->what(), HasSubstr("ELOOP"));
}

TEST_F(SharedFolder, PipesOfOthersGetNothingAndTheirFilesDoNotSetTheMode) {
  ASSERT_EQ(::mkfifo(path("shared/pipe").c_str(), 0666), 0);
  const UniqueFd reader{::open(path("shared/pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  ASSERT_TRUE(reader);
  ASSERT_EQ(::chown(path("shared/pipe").c_str(), kOther, kOther), 0);
  expect_refusal("shared/pipe");
  write_file(path("home/theirs"), "x");
  ASSERT_EQ(::chmod(path("home/theirs").c_str(), 0666), 0);
  ASSERT_EQ(::chown(path("home/theirs").c_str(), kOther, kOther), 0);
  const mode_t before = ::umask(077);
  write_file(path("home/theirs"), "y");
  ::umask(before);
  EXPECT_EQ(fs::status(path("home/theirs")).permissions(), fs::perms{0600});
}

TEST_F(SharedFolder, WhereNoLinkMayBeNoneIsReplaced) {
  link(path("home/precious"), "shared/ddp.rank0.json", 0);
  const base::WholeFile file{.path = path("shared/ddp.rank0.json"), .last = LastLink::refused};
  EXPECT_THAT(error_of([&] { write_file(file, "x"); })->what(), HasSubstr("ddp.rank0.json' is a link"));
  EXPECT_EQ(content(path("home/precious")), "mine");
}

TEST_F(WholeFileTest, DevicesAreWrittenToAndNotReplaced) {
  write_file("/dev/null", "x");
  struct stat facts {};
  ASSERT_EQ(::stat("/dev/null", &facts), 0);
  EXPECT_TRUE(S_ISCHR(facts.st_mode));
  const Error full = thrown_by([] { write_file("/dev/full", "x"); });
  EXPECT_THAT(full.what(), HasSubstr("ENOSPC"));
}

}  // namespace

}  // namespace ddp::base
