// torchrun's layout of log files, and what reaches the console, option by option.
#include <linux/capability.h>
#include <sys/syscall.h>

#include <ddp/error.hpp>

#include "logs/log_plan.hpp"
#include "support/error_of.hpp"
#include "unit/launcher/logs/log_files.hpp"

namespace ddp::launcher {
namespace {

/// Where a stream goes, in words: "inherit", "file", "file+prefixed+filtered", "console", "tail", "nowhere".
std::string words(const StreamPlan& plan) {
  if (plan.inherit) return "inherit";
  const StreamRoute& route = plan.route;
  std::string text;
  const auto add = [&](bool present, const char* word) {
    if (present) text += (text.empty() ? "" : "+") + std::string(word);
  };
  add(!route.file.empty(), "file");
  add(route.console, route.prefixed ? "prefixed" : "console");
  add(route.filtered_file, "filtered");
  add(route.keep_tail, "tail");
  return text.empty() ? "nowhere" : text;
}

std::string plan(const LogOptions& options, int local_rank, const std::string& folder = "/logs/attempt_0") {
  const RankStreams streams =
      plan_streams(options, folder, 10 + local_rank, local_rank, "default", false, false, false);
  return words(streams.out) + " " + words(streams.err);
}

StreamSelection all(Streams streams) { return {.all = streams}; }
StreamSelection some(std::map<int, Streams> streams) {
  return {.all = Streams::none, .by_local_rank = std::move(streams)};
}

TEST(LogPlan, WithoutOptionsTheConsoleIsInherited) {
  EXPECT_EQ(plan({}, 0), "inherit console+tail");
  EXPECT_EQ(plan({}, 0, ""), "inherit console+tail");
}

TEST(LogPlan, TimesNeedPrefixes) {
  LogOptions options;
  options.timestamps = true;
  EXPECT_EQ(plan(options, 0), "prefixed prefixed+tail");
}

TEST(LogPlan, FilteredRanksWriteToTheConsoleOfAJobOnSeveralNodes) {
  const auto out = [](const LogOptions& options, bool job_console) {
    return words(plan_streams(options, "/logs", 1, 1, "default", false, false, job_console).out);
  };
  LogOptions filtered;
  filtered.ranks_filter = {1};
  EXPECT_EQ(out({}, true), "inherit");
  EXPECT_EQ(out(filtered, true), "console");
  EXPECT_EQ(out(filtered, false), "inherit");
}

TEST(LogPlan, ATerminalBelongsToTheOnlyRank) {
  const auto err = [](const LogOptions& options, bool terminal, bool single) {
    return words(plan_streams(options, "/logs", 0, 0, "default", terminal, single, false).err);
  };
  EXPECT_EQ(err({}, true, true), "inherit");
  EXPECT_EQ(err({}, true, false), "console+tail");
  EXPECT_EQ(err({}, false, true), "console+tail");
  LogOptions teed;
  teed.tee = all(Streams::both);
  EXPECT_EQ(err(teed, true, true), "file+prefixed+tail");
}

TEST(LogPlan, RedirectsGoToFilesOnly) {
  LogOptions options;
  options.redirects = all(Streams::both);
  EXPECT_EQ(plan(options, 0), "file file+tail");
  options.redirects = some({{0, Streams::out}, {1, Streams::err}});  // -r 0:1,1:2
  EXPECT_EQ(plan(options, 0), "file console+tail");
  EXPECT_EQ(plan(options, 1), "inherit file+tail");
  EXPECT_EQ(plan(options, 2), "inherit console+tail");
}

TEST(LogPlan, TeeGoesToFilesAndPrefixedToTheConsole) {
  LogOptions options;
  options.tee = all(Streams::both);
  EXPECT_EQ(plan(options, 0), "file+prefixed file+prefixed+tail");
  options.tee = all(Streams::out);
  EXPECT_EQ(plan(options, 0), "file+prefixed console+tail");
  options.redirects = all(Streams::both);  // both name standard output: tee wins
  EXPECT_EQ(plan(options, 0), "file+prefixed file+tail");
  options.redirects = some({{0, Streams::err}});
  options.tee = some({{0, Streams::out}});
  EXPECT_EQ(plan(options, 0), "file+prefixed file+tail");
  EXPECT_EQ(plan(options, 1), "inherit console+tail");
}

TEST(LogPlan, FiltersKeepRanksFromTheConsoleNotFromFiles) {
  for (const bool global : {false, true}) {
    LogOptions options;
    if (global) {
      options.ranks_filter = std::set<int>{10};
    } else {
      options.local_ranks_filter = std::set<int>{0};
    }
    EXPECT_EQ(plan(options, 0), "inherit console+tail");
    EXPECT_EQ(plan(options, 1), "nowhere tail");
    options.tee = all(Streams::both);
    options.stdout_filters = {"x"};
    EXPECT_EQ(plan(options, 0), "file+prefixed+filtered file+prefixed+tail");
    EXPECT_EQ(plan(options, 1), "file file+tail");
  }
  LogOptions both;
  both.local_ranks_filter = std::set<int>{0, 1};
  both.ranks_filter = std::set<int>{11};
  EXPECT_EQ(plan(both, 0), "nowhere tail");
  EXPECT_EQ(plan(both, 1), "inherit console+tail");
  LogOptions empty;
  empty.local_ranks_filter.emplace();
  EXPECT_EQ(plan(empty, 1), "inherit console+tail");
}

TEST(LogPlan, FilteredFilesTakeTeedStreamsOnly) {
  LogOptions options;
  options.stdout_filters = {"x"};
  options.stderr_filters = {"y"};
  EXPECT_EQ(plan(options, 0), "inherit console+tail");
  options.redirects = all(Streams::both);
  EXPECT_EQ(plan(options, 0), "file file+tail");
  options.tee = all(Streams::err);
  EXPECT_EQ(plan(options, 0), "file file+prefixed+filtered+tail");
}

TEST(LogPlan, WithoutFilesRedirectedStreamsStayOnTheConsole) {
  LogOptions options;
  options.redirects = all(Streams::both);
  EXPECT_EQ(plan(options, 0, ""), "inherit console+tail");
  options.tee = all(Streams::both);
  options.stdout_filters = {"x"};
  EXPECT_EQ(plan(options, 0, ""), "prefixed prefixed+tail");
}

TEST(LogPlan, JsonNeedsAPipe) {
  LogOptions options;
  options.format = LogFormat::json;
  EXPECT_EQ(plan(options, 0), "prefixed prefixed+tail");
  options.redirects = all(Streams::both);
  EXPECT_EQ(plan(options, 0), "file file+tail");
}

TEST(LogPlan, RoutesNameRankAndFile) {
  LogOptions options;
  options.tee = all(Streams::both);
  const RankStreams streams = plan_streams(options, "/logs/attempt_2", 13, 5, "trainer", false, false, false);
  EXPECT_EQ(streams.out.route.file, "/logs/attempt_2/5/stdout.log");
  EXPECT_EQ(streams.err.route.file, "/logs/attempt_2/5/stderr.log");
  EXPECT_EQ(streams.out.route.stream, Stream::out);
  EXPECT_EQ(streams.err.route.stream, Stream::err);
  for (const StreamRoute& route : {streams.out.route, streams.err.route}) {
    EXPECT_EQ(route.rank, 13);
    EXPECT_EQ(route.local_rank, 5);
    EXPECT_EQ(route.role, "trainer");
  }
}

struct LogFoldersTest : testing::Test {
  static unsigned mode_of(const std::string& path) {
    struct stat facts {};
    return ::stat(path.c_str(), &facts) == 0 ? facts.st_mode & 07777U : 0;
  }
  static LogOptions in(const std::string& directory) {
    LogOptions options;
    options.directory = directory;
    return options;
  }
  TemporaryFolder folder_;
};

TEST_F(LogFoldersTest, Layout) {
  const LogFolders folders{in(folder_ / "new/logs"), folder_ / "scratch", "job7", "a1b2", 0, 1};
  ASSERT_TRUE(folders.enabled());
  EXPECT_EQ(folders.root(), folder_ / "new/logs/job7_a1b2");
  const std::string attempt = folders.make_attempt(3, 2);
  EXPECT_EQ(attempt, folder_ / "new/logs/job7_a1b2/attempt_3");
  for (const std::string& path : {folders.root(), attempt, attempt + "/0", attempt + "/1"})
    EXPECT_EQ(mode_of(path), 0700U);
  EXPECT_FALSE(std::filesystem::exists(attempt + "/2"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "scratch"));
  EXPECT_EQ(LogFolders::error_file(attempt, 1), attempt + "/1/error.json");
}

TEST_F(LogFoldersTest, NodesOfOneJobShareAFolder) {
  const LogFolders first{in(folder_.path()), "", "job", "x", 0, 2};
  const LogFolders second{in(folder_.path()), "", "job", "x", 1, 2};
  EXPECT_EQ(first.root(), folder_ / "job_x.node0");
  EXPECT_EQ(second.root(), folder_ / "job_x.node1");
  const LogFolders again{in(folder_.path()), "", "job", "x", 1, 2};  // of the next attempt
  EXPECT_EQ(again.make_attempt(1, 1), folder_ / "job_x.node1/attempt_1");
}

TEST_F(LogFoldersTest, WithoutLogDirTheScratchFolder) {
  for (const std::optional<std::string>& directory : {std::optional<std::string>{}, std::optional<std::string>{""}}) {
    LogOptions options;
    options.directory = directory;
    EXPECT_EQ((LogFolders{options, folder_ / "scratch", "none", "x", 0, 1}.root()), folder_ / "scratch/none_x");
  }
}

TEST_F(LogFoldersTest, DevNullMeansNoFiles) {
  const LogFolders folders{in("/dev/null"), folder_ / "scratch", "none", "x", 0, 1};
  EXPECT_FALSE(folders.enabled());
  EXPECT_EQ(folders.make_attempt(0, 4), "");
  EXPECT_EQ(LogFolders::error_file("", 0), "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "scratch"));
}

TEST_F(LogFoldersTest, RunIdsStayInTheFolder) {
  EXPECT_EQ((LogFolders{in(folder_.path()), "", "../a/b\n", "x", 0, 1}.root()), folder_ / ".._a_b__x");
  const std::string root = LogFolders{in(folder_.path()), "", std::string(5000, 'r'), "x", 12345, 65536}.root();
  EXPECT_TRUE(std::filesystem::is_directory(root));
}

TEST_F(LogFoldersTest, RelativeFoldersBecomeAbsolute) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  const std::string root = LogFolders{in("logs/../logs"), "", "j", "x", 0, 1}.root();
  std::filesystem::current_path(before);
  EXPECT_EQ(std::filesystem::path(root), std::filesystem::canonical(folder_.path()) / "logs/j_x");
}

TEST_F(LogFoldersTest, AFileIsNoFolder) {
  write_all(base::UniqueFd{::open((folder_ / "file").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)}.get(), "x");
  const Error error = ddp::test::thrown_by([&] { LogFolders{in(folder_ / "file"), "", "job", "x", 0, 1}; });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("--log-dir"), HasSubstr(folder_ / "file"), HasSubstr("is a file")));
  EXPECT_THROW((LogFolders{in(folder_ / "file/below"), "", "job", "x", 0, 1}), Error);
}

TEST_F(LogFoldersTest, WhatOthersPutInItsPlaceIsRefused) {
  std::filesystem::create_directory(folder_ / "elsewhere");
  std::filesystem::create_directory_symlink(folder_ / "elsewhere", folder_ / "job_x");
  EXPECT_THROW((LogFolders{in(folder_.path()), "", "job", "x", 0, 1}), Error);
  const LogFolders folders{in(folder_.path()), "", "job", "y", 0, 1};
  std::filesystem::create_directory_symlink(folder_ / "elsewhere", folders.root() + "/attempt_0");
  EXPECT_THROW(folders.make_attempt(0, 1), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "elsewhere"));
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives folders away";
  std::filesystem::create_directory(folder_ / "job_z");
  ASSERT_EQ(::chown((folder_ / "job_z").c_str(), 65534, 65534), 0);
  const Error error = ddp::test::thrown_by([&] { LogFolders{in(folder_.path()), "", "job", "z", 0, 1}; });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("job_z"), HasSubstr("belongs to user 65534"), HasSubstr("--log-dir")));
}

TEST_F(LogFoldersTest, ASuffixStaysInTheFolder) {
  EXPECT_EQ((LogFolders{in(folder_.path()), "", "j", "../x", 0, 1}.root()), folder_ / "j_.._x");
}

/// Makes permissions apply to root as to users without such capabilities (capabilities(7)).
class WithoutOverride {
 public:
  WithoutOverride() {
    ::syscall(SYS_capget, &header_, before_);
    std::copy(std::begin(before_), std::end(before_), std::begin(without_));
    for (const unsigned capability : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) {
      without_[0].effective &= ~(1U << capability);
    }
    ::syscall(SYS_capset, &header_, without_);
  }
  WithoutOverride& operator=(WithoutOverride&&) = delete;
  ~WithoutOverride() { ::syscall(SYS_capset, &header_, before_); }

 private:
  __user_cap_header_struct header_{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct before_[2]{};
  __user_cap_data_struct without_[2]{};
};

TEST_F(LogFoldersTest, AFolderThatCannotBeWrittenIsNamed) {
  std::filesystem::create_directory(folder_ / "job_y");
  ASSERT_EQ(::chmod((folder_ / "job_y").c_str(), 0555), 0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0555), 0);
  std::vector<std::string> messages;
  {
    const WithoutOverride ordinary;
    for (const char* suffix : {"x", "y"}) {
      try {
        LogFolders{in(folder_.path()), "", "job", suffix, 0, 1};
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::system);
        messages.emplace_back(error.what());
      }
    }
  }
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0700), 0);
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_THAT(messages[0], AllOf(HasSubstr(folder_ / "job_x"), HasSubstr("EACCES")));
  EXPECT_THAT(messages[1], AllOf(HasSubstr(folder_ / "job_y"), HasSubstr("EACCES")));
}

}  // namespace

// The rules of Python's string.Template, checked against the interpreter if it is installed.

namespace {

const PrefixValues kValues{.role_name = "trainer", .rank = 11, .local_rank = 3};

std::string filled(std::string_view text) { return fill_prefix_template(text, kValues); }

TEST(PrefixTemplate, ReplacesWhatTorchrunKnows) {
  EXPECT_EQ(filled(kDefaultPrefixTemplate), "[trainer3]:");
  EXPECT_EQ(filled("[${role_name}-${local_rank}:${rank}]:"), "[trainer-3:11]:");
  EXPECT_EQ(filled("$role_name $rank $local_rank"), "trainer 11 3");
  EXPECT_EQ(filled(""), "");
  EXPECT_EQ(filled("no placeholders"), "no placeholders");
}

TEST(PrefixTemplate, LeavesUnknownAndMalformedAsTheyAre) {
  for (const char* text : {"$ranks", "$RANK", "${host}", "${rank", "${}", "${ rank}", "${rank }", "$", "a$ b", "$1",
                           "${1a}", "$-", "$\xc5\xbf", "${ran\xc3\xa9}"})
    EXPECT_EQ(filled(text), text);
}

TEST(PrefixTemplate, NamesAreAsLongAsPossible) {
  EXPECT_EQ(filled("$rank-$local_rank."), "11-3.");
  EXPECT_EQ(filled("$rank_0"), "$rank_0");
  EXPECT_EQ(filled("${rank}_0"), "11_0");
  EXPECT_EQ(filled("$rank\xc3\xa9"), "11\xc3\xa9");
}

TEST(PrefixTemplate, TwoDollarsAreOne) {
  EXPECT_EQ(filled("$$"), "$");
  EXPECT_EQ(filled("$$rank"), "$rank");
  EXPECT_EQ(filled("$$$rank"), "$11");
  EXPECT_EQ(filled("$${rank}$$$"), "${rank}$$");
}

TEST(PrefixTemplate, ValuesAreNotExpandedAgain) {
  EXPECT_EQ(fill_prefix_template("$role_name|$role_name", {.role_name = "$rank$$", .rank = 1, .local_rank = 2}),
            "$rank$$|$rank$$");
}

TEST(PrefixTemplate, AgreesWithPython) {
  constexpr std::array<const char*, 14> kParts = {"$", "{", "}", "rank", "local_rank", "role_name", "${rank}",
                                                  "_", "7", "x", " ",    "R",          "$$",        "\xc3\xa9"};
  std::mt19937 dice{7};
  std::string program = "from string import Template\nfor t in [";
  std::string expected;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (unsigned parts = 1 + dice() % 7; parts > 0; --parts) text += kParts[dice() % kParts.size()];
    program += "\"" + text + "\",";
    expected += filled(text) + "\n";
  }
  program += "]: print(Template(t).safe_substitute(role_name='trainer', rank=11, local_rank=3))\n";
  const std::string path = testing::TempDir() + "prefix_template_test.py";
  const std::unique_ptr<FILE, int (*)(FILE*)> script{std::fopen(path.c_str(), "w"), &std::fclose};
  ASSERT_TRUE(script);
  ASSERT_EQ(std::fwrite(program.data(), 1, program.size(), script.get()), program.size());
  std::fflush(script.get());
  const std::unique_ptr<FILE, int (*)(FILE*)> python{
      ::popen(("PYTHONIOENCODING=utf-8 python3 " + path + " 2>/dev/null").c_str(), "r"), &::pclose};
  ASSERT_TRUE(python);
  std::string answer;
  std::array<char, 4096> buffer;
  for (std::size_t size = 0; (size = std::fread(buffer.data(), 1, buffer.size(), python.get())) > 0;)
    answer.append(buffer.data(), size);
  std::remove(path.c_str());
  if (answer.empty()) GTEST_SKIP() << "no python3";
  EXPECT_TRUE(answer == expected);
}

}  // namespace

}  // namespace ddp::launcher
