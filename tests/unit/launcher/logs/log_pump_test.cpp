// Workers' output is never lost or torn.
#include "logs/log_pump.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <charconv>

#include <ddp/error.hpp>

#include "support/error_of.hpp"
#include "support/sanitized.hpp"
#include "unit/launcher/logs/log_pump_fixture.hpp"

namespace ddp::launcher {
namespace {

TEST_F(LogPumpTest, StreamsGoWhereTheirRoutesSay) {
  LogPump pump{options()};
  StreamRoute everywhere = to_console(0, true);
  everywhere.file = folder_ / "0/stdout.log";
  everywhere.keep_tail = true;
  base::UniqueFd first = pump.add(everywhere);
  base::UniqueFd second = pump.add(to_console(1, false, Stream::err));
  base::UniqueFd nowhere = pump.add(route_of(2));
  pump.start();
  write_all(first.get(), "one\ntwo\n");
  write_all(second.get(), "three\n");
  write_all(nowhere.get(), std::string(1'000'000, 'x'));
  first.reset();
  second.reset();
  pump.finish(kGenerous);
  EXPECT_EQ(out_.text(), "[default0]:one\n[default0]:two\n");
  EXPECT_EQ(err_.text(), "three\n");
  EXPECT_EQ(content_of(folder_ / "0/stdout.log"), "one\ntwo\n");
  EXPECT_EQ(pump.tail(0), "one\ntwo\n");
  EXPECT_EQ(pump.tail(1), "");
  EXPECT_EQ(pump.tail(77), "");
}

TEST_F(LogPumpTest, PipesBlockAndAreNotInherited) {
  LogPump pump{options()};
  const base::UniqueFd writing = pump.add(to_console(0, false));
  EXPECT_EQ(::fcntl(writing.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(writing.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::fcntl(pump.add(route_of(1)).get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(LogPumpTest, FilesThatCannotBeMadeAreNamed) {
  LogPump pump{options()};
  pump.add(to_file(0, folder_ / "file"));
  const Error error = ddp::test::thrown_by([&] { pump.add(to_file(1, folder_ / "file/stdout.log")); });
  EXPECT_EQ(error.code(), ErrorCode::system);
  EXPECT_THAT(error.what(), HasSubstr(folder_ / "file"));
  LogPumpOptions filtered = options();
  filtered.stdout_filters = {"x"};
  filtered.filtered_stdout_file = folder_ / "file/filtered_stdout.log";
  EXPECT_THROW(LogPump{filtered}, Error);
}

constexpr std::string_view kLineEnd = " ................................";

/// Runs a process that writes @p lines numbered lines, if wanted in cuts independent of lines. Without prefixes that
/// would depend on time: an unfinished line waits only for a moment.
pid_t start_writer(int fd, int rank, int lines, bool cut_lines) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  std::string text;
  const std::string start = "rank " + std::to_string(rank) + " line ";
  const auto limit = [&](int i) { return static_cast<std::size_t>(100 + (i * 7919 + rank * 104729) % 8000); };
  try {
    for (int i = 0; i < lines; ++i) {
      text.append(start).append(std::to_string(i)).append(kLineEnd).append(1, '\n');
      if (text.size() < limit(i)) continue;
      const std::size_t cut = text.size() - static_cast<std::size_t>(cut_lines ? i % 20 : 0);
      write_all(fd, std::string_view{text}.substr(0, cut));
      text.erase(0, cut);
    }
    write_all(fd, text);
  } catch (...) {
    ::_exit(1);
  }
  ::_exit(0);
}

class ManyWriters : public LogPumpTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Prefix, ManyWriters, testing::Bool());

TEST_P(ManyWriters, NothingIsLostOrTorn) {
  constexpr int kRanks = 64;
  constexpr int kLines = ::ddp::test::cases(20'000);
  const bool prefixed = GetParam();
  std::vector<pid_t> pids;
  {
    LogPump pump{options()};
    std::vector<base::UniqueFd> ends;
    for (int rank = 0; rank < kRanks; ++rank) ends.push_back(pump.add(to_console(rank, prefixed)));
    for (int rank = 0; rank < kRanks; ++rank)
      pids.push_back(start_writer(ends[static_cast<std::size_t>(rank)].get(), rank, kLines, prefixed));
    ends.clear();
    pump.start();
    for (const pid_t pid : pids) {
      int status = -1;
      ASSERT_EQ(::waitpid(pid, &status, 0), pid);
      ASSERT_EQ(status, 0);
    }
    pump.finish(kGenerous);
  }
  const std::string text = out_.text();
  const auto take = [](std::string_view& line, std::string_view wanted) {
    const bool is_there = line.starts_with(wanted);
    line.remove_prefix(is_there ? wanted.size() : 0);
    return is_there;
  };
  const auto take_number = [](std::string_view& line) {
    int number = -1;
    line.remove_prefix(
        static_cast<std::size_t>(std::from_chars(line.data(), line.data() + line.size(), number).ptr - line.data()));
    return number;
  };
  std::vector<int> next(kRanks, 0);
  std::size_t lines = 0;
  for (std::string_view rest = text; !rest.empty(); ++lines) {
    const std::size_t newline = rest.find('\n');
    ASSERT_NE(newline, std::string::npos);
    const std::string_view line = rest.substr(0, newline);
    rest.remove_prefix(newline + 1);
    std::string_view left = line;
    int rank = -1;
    if (prefixed) {
      const bool has_prefix = take(left, "[default") && (rank = take_number(left)) >= 0 && take(left, "]:");
      ASSERT_TRUE(has_prefix) << line;
    }
    const bool has_name = take(left, "rank ");
    const int named = take_number(left);
    ASSERT_TRUE(has_name && named >= 0 && named < kRanks && (!prefixed || rank == named)) << line;
    const bool is_next = take(left, " line ") && take_number(left) == next[static_cast<std::size_t>(named)]++;
    ASSERT_TRUE(is_next && left == kLineEnd) << line;
  }
  EXPECT_EQ(lines, static_cast<std::size_t>(kRanks) * kLines);
}

TEST_F(LogPumpTest, PartialLinesOfTwoRanksDoNotTearEachOther) {
  for (const bool prefixed : {false, true}) {
    ReadConsole console;
    LogPumpOptions both = options();
    both.console_out = console.fd();
    LogPump pump{both};
    base::UniqueFd one = pump.add(to_console(0, prefixed));
    base::UniqueFd other = pump.add(to_console(1, prefixed));
    for (int i = 0; i < 2000; ++i) {
      write_all(one.get(), "aaa");
      write_all(other.get(), "bbb");
      write_all(one.get(), "AAA\n");
      write_all(other.get(), "BBB\n");
    }
    pump.start();  // now that no writer can be late with the rest of a line, in halves that only 64 KiB reads would
                   // join
    one.reset();
    other.reset();
    pump.finish(kGenerous);
    const auto lines = split_lines(console.text());
    EXPECT_EQ(lines.size(), 4000U);
    const std::string prefix0 = prefixed ? "[default0]:" : "";
    const std::string prefix1 = prefixed ? "[default1]:" : "";
    EXPECT_EQ(std::count(lines.begin(), lines.end(), prefix0 + "aaaAAA"), 2000);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), prefix1 + "bbbBBB"), 2000);
  }
}

TEST_F(LogPumpTest, PromptsAndProgressBarsAppear) {
  Pipe console;
  LogPumpOptions own = options();
  own.console_out = console.writing.get();
  LogPump pump{own};
  const base::UniqueFd writing = pump.add(to_console(0, false));
  pump.start();
  for (const std::string text : {"name? ", "\r 10%", "\r 20%", " of it", "\nend\n"}) {
    write_all(writing.get(), text);
    EXPECT_EQ(read_bytes(console.reading.get(), text.size()), text);  // although the line continues
  }
  pump.finish(kGenerous);
}

TEST_F(LogPumpTest, NoNewlineAtTheEnd) {
  LogPump pump{options()};
  base::UniqueFd plain = pump.add(to_console(0, false));
  StreamRoute teed = to_console(1, true, Stream::err);
  teed.file = folder_ / "err.log";
  base::UniqueFd prefixed = pump.add(teed);
  pump.start();
  write_all(plain.get(), "last");
  write_all(prefixed.get(), "words");
  pump.finish(kGenerous);  // although the writers still run
  EXPECT_EQ(out_.text(), "last");
  EXPECT_EQ(err_.text(), "[default1]:words\n");
  EXPECT_EQ(content_of(folder_ / "err.log"), "words");
}

TEST_F(LogPumpTest, BinaryAndVeryLongLinesPassUnchanged) {
  std::string binary;
  for (int i = 0; i < 1'000'000; ++i) binary += static_cast<char>((i * 31 + i / 251) & 0xff);
  const std::string line(3'000'000, 'l');
  LogPump pump{options()};
  StreamRoute raw = to_console(0, false);
  raw.file = folder_ / "raw.log";
  base::UniqueFd plain = pump.add(raw);
  base::UniqueFd prefixed = pump.add(to_console(1, true, Stream::err));
  pump.start();
  write_all(plain.get(), binary);
  write_all(prefixed.get(), line + "\nend\n");
  plain.reset();
  prefixed.reset();
  pump.finish(kGenerous);
  EXPECT_TRUE(out_.text() == binary);
  EXPECT_TRUE(content_of(folder_ / "raw.log") == binary);
  EXPECT_TRUE(err_.text() == "[default1]:" + line + "\n[default1]:end\n");  // one prefix
}

TEST_F(LogPumpTest, ColoursOnThePrefixOnly) {
  LogPumpOptions coloured = options();
  coloured.terminal_out = coloured.terminal_err = true;
  coloured.prefix_template = "<$rank>";
  LogPump pump{coloured};
  base::UniqueFd one = pump.add(to_console(0, true));
  base::UniqueFd other = pump.add(to_console(1, true, Stream::err));
  pump.start();
  write_all(one.get(), "x\n");
  write_all(other.get(), "y\n");
  pump.finish(kGenerous);
  const std::string out = out_.text();
  const std::string err = err_.text();
  EXPECT_THAT(out, MatchesRegex("\x1b\\[[0-9]+m<100>\x1b\\[0mx\n"));
  EXPECT_THAT(err, MatchesRegex("\x1b\\[[0-9]+m<101>\x1b\\[0my\n"));
  EXPECT_NE(out.substr(0, 5), err.substr(0, 5));
}

TEST_F(LogPumpTest, JsonLines) {
  LogPumpOptions json = options();
  json.format = LogFormat::json;
  json.host = "node\"1";
  LogPump pump{json};
  base::UniqueFd writing = pump.add(to_console(2, true));
  pump.start();
  write_all(writing.get(), "a \"quoted\"\tline\r\n\xff\xfe\n" + std::string(70'000, 'x') + "\nunfinished");
  writing.reset();
  pump.finish(kGenerous);
  const auto lines = split_lines(out_.text());
  ASSERT_EQ(lines.size(), 5U);
  std::vector<nlohmann::json> parsed;
  for (const std::string& line : lines) parsed.push_back(nlohmann::json::parse(line));
  EXPECT_THAT(parsed[0]["time"].get<std::string>(),
              MatchesRegex("20[0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9][.][0-9]{6}Z"));
  parsed[0].erase("time");
  EXPECT_EQ(parsed[0], (nlohmann::json{{"host", "node\"1"},
                                       {"rank", 102},
                                       {"local_rank", 2},
                                       {"stream", "stdout"},
                                       {"line", "a \"quoted\"\tline"}}));
  EXPECT_EQ(parsed[1]["line"], "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(parsed[2]["partial"], true);
  EXPECT_EQ(parsed[2]["line"].get<std::string>() + parsed[3]["line"].get<std::string>(), std::string(70'000, 'x'));
  EXPECT_FALSE(parsed[3].contains("partial"));
  EXPECT_EQ(parsed[4]["line"], "unfinished");
}

TEST_F(LogPumpTest, FilteredLinesOfAllRanksInOneFile) {
  LogPumpOptions filtered = options();
  filtered.stdout_filters = {"loss", "[warn]"};
  filtered.filtered_stdout_file = folder_ / "filtered_stdout.log";
  filtered.stderr_filters = {"nothing"};
  filtered.filtered_stderr_file = folder_ / "filtered_stderr.log";
  filtered.terminal_out = true;
  LogPump pump{filtered};
  std::vector<base::UniqueFd> ends;
  for (int rank = 0; rank < 2; ++rank) {
    StreamRoute teed = to_console(rank, true);
    teed.filtered_file = true;
    ends.push_back(pump.add(teed));
  }
  ends.push_back(pump.add(to_console(2, true)));  // not to be filtered
  pump.start();
  write_all(ends[0].get(), "lo");
  write_all(ends[0].get(), "ss 1\nother\n[warn] x\n");
  write_all(ends[1].get(), "step\nno newline but loss");
  write_all(ends[2].get(), "loss of another\n");
  ends.clear();
  pump.finish(kGenerous);
  auto lines = split_lines(content_of(folder_ / "filtered_stdout.log"));
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(lines, ElementsAre("[default0]:[warn] x", "[default0]:loss 1", "[default1]:no newline but loss"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "filtered_stderr.log"));
  EXPECT_EQ(split_lines(out_.text()).size(), 6U);
}

TEST_F(LogPumpTest, OneTargetForBothConsolesIsNotTorn) {
  Pipe both;
  const base::UniqueFd copy{::fcntl(both.writing.get(), F_DUPFD_CLOEXEC, 0)};
  LogPumpOptions own = options();
  own.console_out = both.writing.get();
  own.console_err = copy.get();
  LogPump pump{own};
  base::UniqueFd out = pump.add(to_console(0, true));
  base::UniqueFd err = pump.add(to_console(0, true, Stream::err));
  pump.start();
  const std::string line(70, 'x');
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += line + "\n";
  std::thread first([&] { write_all(out.get(), text); });
  std::thread second([&] { write_all(err.get(), text); });
  const std::size_t expected = 20'000 * (line.size() + 12);
  std::future<std::string> read =
      std::async(std::launch::async, [&] { return read_bytes(both.reading.get(), expected); });
  first.join();
  second.join();
  pump.finish(kGenerous);
  const auto lines = split_lines(read.get());
  EXPECT_EQ(lines.size(), 20'000U);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "[default0]:" + line), 20'000);
}

TEST_F(LogPumpTest, FilesFillWhileLinesAreWritten) {
  LogPump pump{options()};
  const base::UniqueFd writing = pump.add(to_file(0, folder_ / "0.log"));
  pump.start();
  std::string sent;
  for (int i = 0; i < 20; ++i) {
    write_all(writing.get(), "line\npart");
    sent += "line\npart";
    EXPECT_TRUE(eventually([&] { return content_of(folder_ / "0.log") == sent; }));
  }
}

TEST_F(LogPumpTest, DescriptorsThatRunOutAreNamed) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  LogPump pump{options()};
  const base::UniqueFd probe{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  const rlimit tight{.rlim_cur = static_cast<rlim_t>(probe.get()) + 4, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::string message;
  std::vector<base::UniqueFd> ends;
  try {
    for (int rank = 0; rank < 100; ++rank) ends.push_back(pump.add(to_console(rank, false)));
  } catch (const Error& error) {
    message = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(message, AllOf(HasSubstr("rank 10"), HasSubstr("EMFILE")));
}

}  // namespace
}  // namespace ddp::launcher
