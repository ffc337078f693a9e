// Log files go on without what does not fit, and say so.
#include "logs/output_file.hpp"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <ddp/error.hpp>

#include "support/error_of.hpp"
#include "unit/launcher/logs/log_files.hpp"

namespace ddp::launcher {
namespace {

struct OutputFileTest : testing::Test {
  OutputFile create(const std::string& path, milliseconds retry_after = milliseconds(0)) {
    return OutputFile::create(
        path, [this](const std::string& line) { complaints_.push_back(line); }, retry_after);
  }
  static unsigned mode_of(const std::string& path) {
    struct stat facts {};
    return ::stat(path.c_str(), &facts) == 0 ? facts.st_mode & 07777U : 0;
  }
  TemporaryFolder folder_;
  std::vector<std::string> complaints_;
};

TEST_F(OutputFileTest, MakesFoldersAndFileForTheUserAlone) {
  OutputFile file = create(folder_ / "a/b/out.log");
  file.write("line\nhalf");
  EXPECT_EQ(content_of(folder_ / "a/b/out.log"), "line\nhalf");  // at once, for tail -f
  file.close();
  EXPECT_EQ(mode_of(folder_ / "a"), 0700U);
  EXPECT_EQ(mode_of(folder_ / "a/b"), 0700U);
  EXPECT_EQ(mode_of(folder_ / "a/b/out.log"), 0600U);
  EXPECT_THAT(complaints_, IsEmpty());
}

TEST_F(OutputFileTest, WritesToNoTrap) {
  const std::string treasure = folder_ / "treasure";
  write_all(base::UniqueFd{::open(treasure.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)}.get(), "gold");
  ASSERT_EQ(::symlink(treasure.c_str(), (folder_ / "symlink").c_str()), 0);
  ASSERT_EQ(::symlink((folder_ / "new").c_str(), (folder_ / "dangling").c_str()), 0);
  ASSERT_EQ(::link(treasure.c_str(), (folder_ / "hardlink").c_str()), 0);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  for (const char* name : {"symlink", "dangling", "hardlink", "pipe"}) {
    EXPECT_THROW(create(folder_ / name), Error) << name;
  }
  EXPECT_EQ(content_of(treasure), "gold");
  EXPECT_EQ(::access((folder_ / "new").c_str(), F_OK), -1);
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  const std::string foreign = folder_ / "foreign";
  write_all(base::UniqueFd{::open(foreign.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)}.get(), "x");
  ASSERT_EQ(::chown(foreign.c_str(), 65534, 65534), 0);
  EXPECT_THROW(create(foreign), Error);
}

TEST_F(OutputFileTest, EmptiesWhatAnEarlierRunLeft) {
  { create(folder_ / "out.log").write("long ago\n"); }
  create(folder_ / "out.log").write("now\n");
  EXPECT_EQ(content_of(folder_ / "out.log"), "now\n");
}

TEST_F(OutputFileTest, NamesWhatCannotBeMade) {
  write_all(base::UniqueFd{::open((folder_ / "file").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)}.get(), "x");
  const Error error = ddp::test::thrown_by([&] { create(folder_ / "file/out.log"); });
  EXPECT_EQ(error.code(), ErrorCode::system);
  EXPECT_THAT(error.what(), AllOf(HasSubstr(folder_ / "file"), HasSubstr("ENOTDIR")));
  EXPECT_THAT(ddp::test::thrown_by([&] { create(folder_.path()); }).what(),
              AllOf(HasSubstr(folder_.path()), HasSubstr("EISDIR")));
}

TEST_F(OutputFileTest, SaysOnceThatTheDiskIsFull) {
  OutputFile file = create("/dev/full");
  for (int i = 0; i < 10; ++i) file.write("12345678\n");
  EXPECT_EQ(file.missing_bytes(), 90U);
  file.close();
  ASSERT_EQ(complaints_.size(), 1U);
  EXPECT_THAT(complaints_[0], AllOf(HasSubstr("/dev/full"), HasSubstr("ENOSPC (28)")));
}

TEST_F(OutputFileTest, TriesAgainOnlyAfterAWhile) {
  // a descriptor that fails until something else is put in its place
  base::UniqueFd fd{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
  const int number = fd.get();
  OutputFile file{std::move(fd), "the log file", [](const std::string&) {}, std::chrono::hours(1)};
  file.write("lost\n");
  const base::UniqueFd good{::open((folder_ / "good").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)};
  ASSERT_EQ(::dup2(good.get(), number), number);
  file.write("lost too\n");
  EXPECT_EQ(file.missing_bytes(), 14U);
  EXPECT_EQ(content_of(folder_ / "good"), "");
  file.close();  // the last chance to say it
  EXPECT_EQ(content_of(folder_ / "good"), "ddprun: 14 bytes are missing here: No space left on device [ENOSPC (28)]\n");
}

TEST_F(OutputFileTest, GoesOnAtALineWhenThereIsSpaceAgain) {
  base::UniqueFd fd{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
  const int number = fd.get();
  OutputFile file{std::move(fd), "the log file", [this](const std::string& line) { complaints_.push_back(line); },
                  milliseconds(0)};
  file.write("lost\nha");
  const base::UniqueFd good{::open((folder_ / "good").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)};
  ASSERT_EQ(::dup2(good.get(), number), number);
  file.write("lf of a line");
  EXPECT_EQ(content_of(folder_ / "good"), "");
  file.write(" ends\nwhole\npart");
  file.write("ial\n");
  EXPECT_THAT(split_lines(content_of(folder_ / "good")),
              ElementsAre(AllOf(HasSubstr(" 25 bytes"), HasSubstr("ENOSPC")), "whole", "partial"));
  EXPECT_EQ(file.missing_bytes(), 0U);
  EXPECT_EQ(complaints_.size(), 1U);
}

/// Runs @p check in a child process, whose limits and mounts are its own. @return its exit status
int in_child(const std::function<int()>& check) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(check());
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(OutputFileTest, AFileSizeLimitIsAFullDisk) {
  EXPECT_EQ(in_child([&] {
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{.rlim_cur = 10, .rlim_max = RLIM_INFINITY};
              OutputFile file = create(folder_ / "limited");
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              file.write("123456\n89012\n");  // is written in part
              if (complaints_.size() != 1 || complaints_[0].find("EFBIG") == std::string::npos) return 2;
              if (content_of(folder_ / "limited") != "123456\n890") return 3;
              const rlimit none{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
              if (::setrlimit(RLIMIT_FSIZE, &none) != 0) return 4;
              file.write("next\n");
              const auto lines = split_lines(content_of(folder_ / "limited"));
              if (lines.size() != 4 || lines[1] != "890" || lines[3] != "next") return 5;
              return lines[2].starts_with("ddprun: 3 bytes are missing here: ") ? 0 : 6;
            }),
            0);
}

TEST_F(OutputFileTest, ASmallFileSystemFillsAndIsEmptied) {
  constexpr int kNotAllowed = 77;
  const int status = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=64k") != 0)
      return kNotAllowed;
    OutputFile file = create(folder_ / "out.log");
    OutputFile other = create(folder_ / "other.log");
    other.write(std::string(20'000, 'x') + "\n");
    for (int i = 0; i < 10'000; ++i) file.write("a line of text\n");
    if (file.missing_bytes() == 0 || complaints_.size() != 1) return 1;
    if (::truncate((folder_ / "other.log").c_str(), 0) != 0) return 2;
    file.write("space again\n");
    file.close();
    const std::string text = content_of(folder_ / "out.log");
    const auto lines = split_lines(text);
    const bool noted =
        lines.size() > 2 && lines[lines.size() - 2].starts_with("ddprun: ") && lines.back() == "space again";
    return noted ? 0 : 3;
  });
  if (status == kNotAllowed) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ddp::launcher
