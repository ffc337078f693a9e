// Temporary folders: private, removed in the end, and by others once nobody is left who could.
#include "pmix_server/scratch_directory.hpp"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <ddp/error.hpp>

#include "base/files.hpp"

namespace ddp::launcher {
namespace {

/// Not even root removes an immutable file (chattr(1)). @return whether the file system knows that
bool set_immutable(const std::string& path, bool immutable) {
  const base::UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  int flags = 0;
  if (!file || ::ioctl(file.get(), FS_IOC_GETFLAGS, &flags) != 0) return false;
  flags = immutable ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
  return ::ioctl(file.get(), FS_IOC_SETFLAGS, &flags) == 0;
}

struct ScratchDirectoryTest : testing::Test {
  ScratchDirectoryTest() {
    std::string path = testing::TempDir() + "/sweep_XXXXXX";
    parent_ = ::mkdtemp(path.data());
  }
  ~ScratchDirectoryTest() override { std::filesystem::remove_all(parent_); }

  /// Of a process that was killed, with a file in it.
  std::string leave() {
    const std::vector<std::string> before = left();
    const pid_t child = ::fork();
    if (child == 0) {
      const ScratchDirectory folder{parent_};
      std::filesystem::create_directory(folder.path() + "/below");
      std::ofstream{folder.path() + "/below/file"} << "x";
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    for (const std::string& name : left()) {
      if (std::find(before.begin(), before.end(), name) == before.end()) return name;
    }
    return {};
  }
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator{parent_}) names.push_back(entry.path());
    return names;
  }
  void sweep() const { base::remove_left_scratch(parent_, Deadline::after(std::chrono::seconds(20))); }

  std::string parent_;
};

TEST_F(ScratchDirectoryTest, IsPrivateAndRemovedInTheEnd) {
  {
    const ScratchDirectory folder{parent_};
    struct stat found {};
    ASSERT_EQ(::stat(folder.path().c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777U, 0700U);
  }
  EXPECT_THAT(left(), IsEmpty());
  EXPECT_THROW(ScratchDirectory{parent_ + "/none"}, std::exception);
}

TEST_F(ScratchDirectoryTest, WithoutRoomTheErrorNamesTheFileSystem) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string error;
  try {
    const ScratchDirectory made{parent_};
  } catch (const Error& caught) {
    error = caught.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(error, AllOf(HasSubstr(parent_), HasSubstr("mounted at /"), HasSubstr("KiB free"), HasSubstr("EFBIG"),
                           HasSubstr("ulimit -f")));
  EXPECT_TRUE(std::filesystem::is_empty(parent_));
}

TEST_F(ScratchDirectoryTest, WhatAKilledProcessLeftIsRemoved) {
  leave();
  leave();
  ASSERT_THAT(left(), SizeIs(2));
  sweep();
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(ScratchDirectoryTest, WhatIsLeftOfAFolderThatWasBeingMadeOrRemovedIsRemoved) {
  std::filesystem::remove_all(leave() + "/below");  // only the lock is left
  const std::string empty = leave();
  std::filesystem::remove_all(empty);
  ASSERT_EQ(::mkdir(empty.c_str(), 0700), 0);
  const std::string unnamed = leave();
  std::filesystem::resize_file(unnamed + "/lock", 0);
  sweep();
  EXPECT_THAT(left(), UnorderedElementsAre(empty, unnamed)) << "their makers may be about to go on";
  for (const std::string& path : {empty, unnamed + "/lock"}) {
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - 2h);
  }
  sweep();
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(ScratchDirectoryTest, TheLockIsRemovedLast) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes files immutable";
  std::string path;
  {
    const ScratchDirectory folder{parent_};
    path = folder.path();
    std::ofstream{path + "/file"} << "x";
    if (!set_immutable(path + "/file", true)) GTEST_SKIP() << "the file system has no immutable files";
  }
  EXPECT_TRUE(std::filesystem::exists(path + "/lock"));
  set_immutable(path + "/file", false);
  sweep();
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(ScratchDirectoryTest, AFolderInUseStays) {
  std::optional<ScratchDirectory> owner{parent_};
  const std::string path = owner->path();
  ScratchDirectory moved = std::move(*owner);
  owner.reset();
  sweep();
  EXPECT_THAT(left(), UnorderedElementsAre(path));
}

TEST_F(ScratchDirectoryTest, AFolderThatASecondProcessUsesStaysUntilItIsGoneToo) {
  const std::string path = leave();
  base::UniqueFd use = share_scratch(path);
  ASSERT_TRUE(use);
  sweep();
  EXPECT_THAT(left(), UnorderedElementsAre(path));
  use.reset();
  sweep();
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(ScratchDirectoryTest, WhatIsNotThisUsersOrHostsStays) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  constexpr uid_t kNobody = 65534;
  const std::string foreign = leave(), foreign_lock = leave(), open_to_all = leave(), other_host = leave();
  ASSERT_EQ(::chown(foreign.c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(::chown((foreign_lock + "/lock").c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(::chmod(open_to_all.c_str(), 0770), 0);
  std::ofstream{other_host + "/lock"} << "another-host";
  sweep();
  EXPECT_THAT(left(), UnorderedElementsAre(foreign, foreign_lock, open_to_all, other_host));
}

TEST_F(ScratchDirectoryTest, LinksLeadNowhere) {
  const std::string treasure = parent_ + "/treasure";
  std::filesystem::create_directory(treasure);
  std::ofstream{treasure + "/file"} << "x";
  const std::string elsewhere = leave();
  const std::string outside = parent_ + "/elsewhere";
  std::filesystem::rename(elsewhere, outside);
  std::filesystem::create_directory_symlink(outside, parent_ + "/ddprun.aaaaaa");  // in place of a folder
  const std::string trap = leave();
  std::filesystem::create_directory_symlink(treasure, trap + "/below/link");
  const std::string linked_lock = leave();
  std::filesystem::remove(linked_lock + "/lock");
  std::filesystem::create_symlink(outside + "/lock", linked_lock + "/lock");
  const std::string no_lock = leave();
  std::filesystem::remove(no_lock + "/lock");
  sweep();
  EXPECT_FALSE(std::filesystem::exists(trap));
  EXPECT_TRUE(std::filesystem::exists(treasure + "/file"));
  EXPECT_TRUE(std::filesystem::exists(outside + "/below/file"));
  EXPECT_TRUE(std::filesystem::exists(linked_lock + "/below/file"));
  EXPECT_TRUE(std::filesystem::exists(no_lock + "/below/file"));
}

TEST_F(ScratchDirectoryTest, NobodyRemovesAFolderThatIsJustBeingMade) {
  std::jthread sweeper{[&](const std::stop_token& stop) {
    while (!stop.stop_requested()) sweep();
  }};
  for (int i = 0; i < 300; ++i) {
    const ScratchDirectory folder{parent_};
    std::ofstream{folder.path() + "/file"} << "x";
    EXPECT_TRUE(std::filesystem::exists(folder.path() + "/file")) << i;
  }
  sweeper.request_stop();
  sweeper.join();
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(ScratchDirectoryTest, AFileThatCannotBeRemovedDoesNotKeepOtherFolders) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes files immutable";
  std::vector<std::string> kept;
  for (int i = 0; i < 4; ++i) {  // whatever the order of the listing
    kept.push_back(leave());
    if (!set_immutable(kept.back() + "/below/file", true)) GTEST_SKIP() << "the file system has no immutable files";
    leave();
  }
  sweep();
  EXPECT_THAT(left(), UnorderedElementsAreArray(kept));
  for (const std::string& path : kept) set_immutable(path + "/below/file", false);
  sweep();
  EXPECT_THAT(left(), IsEmpty());
}

}  // namespace
}  // namespace ddp::launcher
