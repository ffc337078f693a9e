// One job at a time saves to a folder of checkpoints; who is refused, and who may take it over.
#include "training/folder_owner.hpp"

#include <sys/syscall.h>

#include "unit/kvs/rank_threads.hpp"

namespace {
std::atomic<bool> has_locks{true};
}

/// The library's, too, in this program: a file system without locks.
extern "C" int flock(int fd, int operation) noexcept {
  if (has_locks) return static_cast<int>(::syscall(SYS_flock, fd, operation));
  errno = ENOLCK;
  return -1;
}

namespace ddp::training {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::thrown_by;

constexpr OwnerPatience kQuick{
    .beat = milliseconds{20}, .silence = milliseconds{3'000}, .old = milliseconds{600'000}, .settle = milliseconds{1}};
constexpr OwnerPatience kShort{
    .beat = milliseconds{20}, .silence = milliseconds{100}, .old = milliseconds{600'000}, .settle = milliseconds{1}};

struct FolderOwnerTest : testing::Test {
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ddp owner.XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    has_locks = true;
    fs::remove_all(folder_);
  }

  static Saver saver(const std::string& claim, const std::string& job = {}) {
    Saver self = Saver::process_of(base::Environment{{}});
    self.claim = claim;
    self.job = job;
    return self;
  }
  static Saver on_other_host(Saver self) {
    self.host = "far";
    self.boot = "another kernel";
    return self;
  }
  std::unique_ptr<FolderOwner> own(const Saver& self, const OwnerPatience& patience = kQuick) const {
    return std::make_unique<FolderOwner>(folder_, self, test::soon(), patience);
  }
  std::string path() const { return folder_ + "/owner"; }
  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path(), std::ios::binary).rdbuf();
    return text.str();
  }
  void write(const std::string& text) const { std::ofstream(path(), std::ios::binary | std::ios::trunc) << text; }
  Saver written() const { return parse_saver(content(), path()); }
  /// A process that becomes the owner, and is killed.
  void leave_a_killed_owner(const Saver& self) const {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        Saver own_self = self;
        own_self.process = ::getpid();
        auto* const owner = new FolderOwner(folder_, own_self, test::soon(), kQuick);
        ::_exit(owner == nullptr ? 1 : 0);
      } catch (...) {
        ::_exit(1);
      }
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }

  std::string folder_;
};

TEST_F(FolderOwnerTest, ASecondOneIsRefusedWithBothNames) {
  const auto first = own(saver("00000001", "Slurm job 17"));
  for (const bool far : {false, true}) {
    Saver self = saver("00000002", "Slurm job 18");
    const auto error = error_of([&] { own(far ? on_other_host(self) : self); });
    ASSERT_TRUE(error) << far;
    EXPECT_EQ(error->code(), ErrorCode::conflict);
    EXPECT_THAT(error->attempted(), HasSubstr(folder_));
    EXPECT_THAT(error->cause(), HasSubstr("Slurm job 17, process "));
    EXPECT_THAT(error->cause(), HasSubstr("saves there; Slurm job 18, process "));
    EXPECT_THAT(error->hint(), HasSubstr("a folder of its own"));
  }
  first->check(test::soon());
  EXPECT_EQ(written().claim, "00000001");
}

TEST_F(FolderOwnerTest, WithoutLocksSignsOfLifeDecide) {
  has_locks = false;
  {
    const auto first = own(saver("00000001"));
    EXPECT_FALSE(written().locked);
    EXPECT_EQ(error_of([&] { own(saver("00000002")); })->code(), ErrorCode::conflict);
    EXPECT_EQ(error_of([&] { own(on_other_host(saver("00000003"))); })->code(), ErrorCode::conflict);
  }
  leave_a_killed_owner(saver("00000004"));
  EXPECT_TRUE(written().saves);
  const auto next = own(saver("00000005"), {.silence = std::chrono::hours{1}});
  EXPECT_TRUE(next->inherits("00000004ffffffff")) << "its process is gone";
}

TEST_F(FolderOwnerTest, OneThatHasEndedIsFollowedAtOnce) {
  own(saver("00000001"));
  EXPECT_FALSE(written().saves);
  const auto second = own(on_other_host(saver("00000002")), {.silence = std::chrono::hours{1}});
  EXPECT_TRUE(second->inherits(second->new_save_id()));
  EXPECT_TRUE(second->inherits("00000001ffffffff"));
  EXPECT_FALSE(second->inherits("00000003ffffffff"));
  EXPECT_FALSE(second->inherits(""));
}

TEST_F(FolderOwnerTest, OneOfThisHostThatWasKilledIsFollowedAtOnce) {
  leave_a_killed_owner(saver("00000001"));
  EXPECT_TRUE(written().saves && written().locked);
  const auto next = own(saver("00000002"), {.silence = std::chrono::hours{1}});
  EXPECT_TRUE(next->inherits("0000000100000000"));
}

TEST_F(FolderOwnerTest, AChildThatOutlivesItKeepsNoLock) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    auto* const owner = new FolderOwner(folder_, saver("00000001"), test::soon(), kQuick);
    if (::fork() == 0) {
      owner->end();  // a child's is no end of the parent's
      ::close(ends[1]);
      char byte = 0;
      ::_exit(::read(ends[0], &byte, 1) == 0 ? 0 : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(parent, &status, 0), parent);
  EXPECT_TRUE(written().saves);
  EXPECT_TRUE(own(saver("00000002"), {.silence = std::chrono::hours{1}}));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(FolderOwnerTest, OneOfAnotherHostIsWaitedFor) {
  Saver dead = on_other_host(saver("00000001", "Slurm job 17"));
  write(format_saver(dead));
  const auto start = Deadline::Clock::now();
  testing::internal::CaptureStderr();
  const auto next = own(saver("00000002"), kShort);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("Slurm job 17, process"));
  EXPECT_GE(Deadline::Clock::now() - start, kShort.silence);
  EXPECT_EQ(written().claim, "00000002");
}

TEST_F(FolderOwnerTest, OneThatWasLastHeardOfLongAgoIsNot) {
  write(format_saver(on_other_host(saver("00000001"))));
  fs::last_write_time(path(), fs::file_time_type::clock::now() - std::chrono::minutes{11});
  EXPECT_TRUE(own(saver("00000002"), {.silence = std::chrono::hours{1}}));
}

TEST_F(FolderOwnerTest, NoTimeToWaitIsSaid) {
  write(format_saver(on_other_host(saver("00000001"))));
  const auto error =
      error_of([&] { FolderOwner(folder_, saver("00000002"), test::soon(50), {.silence = std::chrono::hours{1}}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::timeout);
}

TEST_F(FolderOwnerTest, ALaterAttemptTakesItAtOnceAndTheEarlierOneLearnsIt) {
  for (const bool requeue : {true, false}) {
    Saver self = on_other_host(saver(requeue ? "0000000a" : "0000000c", requeue ? "Slurm job 17" : "job x"));
    if (!requeue) self.run = "x";
    const auto cut_off = own(self);  // it goes on to give signs of life
    Saver later = saver(requeue ? "0000000b" : "0000000d", self.job);
    later.run = self.run;
    (requeue ? later.requeues : later.restarts) = 1;
    const auto next = own(later, {.silence = std::chrono::hours{1}, .settle = milliseconds{1}});
    const Error error = thrown_by([&] { cut_off->check(test::soon()); });
    EXPECT_EQ(error.code(), ErrorCode::conflict);
    EXPECT_THAT(error.cause(), HasSubstr(requeue ? "Slurm job 17, requeue 1, process " : "job x, restart 1, process "));
    EXPECT_THAT(error.cause(), HasSubstr("on host far"));
    next->check(test::soon());
  }
}

TEST_F(FolderOwnerTest, ADamagedFileIsFollowedAfterSilence) {
  for (const std::string& text : {std::string("ddp-checkpoint-owner 1\nclaim"), std::string(5000, 'x')}) {
    write(text);
    const auto owner = own(saver("00000002"), kShort);
    EXPECT_EQ(written().claim, "00000002");
  }
}

TEST_F(FolderOwnerTest, OnlyOneOfManyAtOnceGetsIt) {
  for (const bool dead_one : {false, true}) {
    if (dead_one) write(format_saver(on_other_host(saver("0000000f"))));
    std::atomic<int> owners{0};
    std::atomic<int> refused{0};
    std::vector<std::unique_ptr<FolderOwner>> kept(4);
    test::run_ranks(4, [&](int rank) {
      try {
        kept[static_cast<std::size_t>(rank)] = own(saver("0000000" + std::to_string(rank)), kShort);
        ++owners;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::conflict) << error.what();
        ++refused;
      }
    });
    EXPECT_EQ(owners, 1);
    EXPECT_EQ(refused, 3);
  }
}

TEST_F(FolderOwnerTest, AFileThatIsGoneIsMadeAgainAndALinkIsRefused) {
  {
    const auto owner = own(saver("00000001"));
    fs::remove(path());
    owner->check(test::soon());
    EXPECT_EQ(written().claim, "00000001");
    EXPECT_EQ(error_of([&] { own(saver("00000002")); })->code(), ErrorCode::conflict);
  }
  fs::rename(path(), folder_ + "/elsewhere");
  fs::create_symlink("elsewhere", path());
  const Error error = thrown_by([&] { own(saver("00000003")); });
  EXPECT_THAT(error.what(), HasSubstr("ELOOP"));
}

TEST_F(FolderOwnerTest, InOneProcessAllHaveTheSame) {
  fs::create_directory_symlink(folder_, folder_ + ".link");
  const auto first = FolderOwner::of(folder_, test::soon());
  EXPECT_EQ(FolderOwner::of(folder_ + ".link/", test::soon()), first);
  fs::remove(folder_ + ".link");
}

TEST(SaverText, ComesBackAndNothingElseIsRead) {
  Saver saver = Saver::process_of(base::Environment{{{"SLURM_JOB_ID", "17\n"},
                                                     {"SLURM_STEP_ID", "3"},
                                                     {"SLURM_RESTART_COUNT", "2"},
                                                     {"TORCHELASTIC_RESTART_COUNT", "nine"}}});
  EXPECT_EQ(saver.requeues, 2);
  EXPECT_EQ(saver.restarts, 0);
  EXPECT_EQ(
      Saver::process_of(base::Environment{{{"TORCHELASTIC_RESTART_COUNT", "1"}, {"DDP_GENERATION", "4"}}}).restarts, 4)
      << "a lost node spends no restart";
  EXPECT_THAT(saver.name(), HasSubstr("Slurm job 17?, requeue 2, process "));
  saver.formers = {"01234567", "89abcdef"};
  const std::string text = format_saver(saver);
  EXPECT_EQ(parse_saver(text, "owner"), saver);
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_TRUE(error_of([&] { parse_saver(text.substr(0, size), "owner"); })) << size;
  }
  EXPECT_TRUE(error_of([&] { parse_saver(text + "x", "owner"); }));
  saver.job.assign(10'000, 'j');
  saver.formers.assign(1000, "01234567");
  EXPECT_LE(format_saver(saver).size(), kMostSaverBytes);
}

}  // namespace
}  // namespace ddp::training
