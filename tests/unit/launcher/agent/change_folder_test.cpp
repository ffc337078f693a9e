// The folder by which ranks learn of a change and ask for the next generation.
#include <ddp/error.hpp>

#include "agent/change_folder.hpp"

namespace ddp::launcher {
namespace {

struct ChangeFolderTest : testing::Test {
  ChangeFolderTest() {
    std::string path = testing::TempDir() + "change XXXXXX";
    scratch_ = ::mkdtemp(path.data());
  }
  ~ChangeFolderTest() override { std::filesystem::remove_all(scratch_); }
  std::string scratch_;
};

TEST_F(ChangeFolderTest, SaysWhatThePendingFileAndTheRanksFilesSay) {
  const ChangeFolder folder(scratch_, 3);
  const std::string pending = folder.path() + "/pending";
  EXPECT_FALSE(std::filesystem::exists(pending));
  folder.announce(true);
  folder.announce(true);
  EXPECT_TRUE(std::filesystem::exists(pending));
  folder.announce(false);
  folder.announce(false);
  EXPECT_FALSE(std::filesystem::exists(pending));
  EXPECT_FALSE(folder.wants_restart(11));
  std::ofstream(folder.path() + "/restart.11");
  EXPECT_TRUE(folder.wants_restart(11));
  EXPECT_FALSE(folder.wants_restart(1));
}

TEST_F(ChangeFolderTest, IsTheUsersAloneAndGoesWithTheAttempt) {
  std::optional<ChangeFolder> folder(std::in_place, scratch_, 0);
  const std::string path = folder->path();
  struct stat found {};
  ASSERT_EQ(::stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700U);
  EXPECT_THROW(ChangeFolder(scratch_, 0), Error);
  const ChangeFolder next(scratch_, 1);
  std::ofstream(path + "/restart.0");
  folder.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(next.path()));
}

TEST_F(ChangeFolderTest, FailsWhereTheScratchFolderIsGone) {
  const ChangeFolder folder(scratch_, 0);
  std::filesystem::remove_all(scratch_);
  EXPECT_THROW(folder.announce(true), Error);
  EXPECT_FALSE(folder.wants_restart(0));
  EXPECT_THROW(ChangeFolder(scratch_, 1), Error);
}

}  // namespace
}  // namespace ddp::launcher
