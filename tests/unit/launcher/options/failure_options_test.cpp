// Restarts, time limits and signals on the command line.
#include "options/failure_options.hpp"
#include "command_line_support.hpp"

namespace ddp::launcher {
namespace {

TEST(FailureOptions, TimesAndRestarts) {
  const auto options = parse({"--max-restarts", "3", "--failure-grace", "0", "--timeout", "2000000",
                              "--torchrun-exit-codes", "--hang-report-after", "0.5", "p"});
  EXPECT_EQ(options.max_restarts, 3);
  EXPECT_EQ(options.failure_grace, std::chrono::seconds(0));
  EXPECT_EQ(options.timeout, std::chrono::seconds(2'000'000));
  EXPECT_TRUE(options.torchrun_exit_codes);
  EXPECT_EQ(options.hang_report_after, std::chrono::milliseconds(500));
  EXPECT_EQ(parse({"p"}).hang_report_after, std::chrono::minutes(5));
  EXPECT_FALSE(parse({"--hang-report-after", "0", "p"}).hang_report_after);
  EXPECT_EQ(parse({"--end-hung", "600", "p"}).end_hung, std::chrono::minutes(10));
  EXPECT_FALSE(parse({"p"}).end_hung);
  for (const Words& words :
       {Words{"--max-restarts=-1", "p"}, Words{"--max-restarts", "1.5", "p"}, Words{"--timeout", "0", "p"},
        Words{"--timeout", "0.0001", "p"}, Words{"--timeout", "nan", "p"}, Words{"--hang-report-after", "-1", "p"},
        Words{"--monitor-interval", "x", "p"}})
    EXPECT_THAT(complaint(words), HasSubstr("reading --")) << words[0];
}

TEST(FailureOptions, HowRanksEndForAChangeOfNodes) {
  using How = ResizeManner::How;
  const struct {
    const char* text;
    How how;
    int signal;
  } cases[] = {{"stop", How::stop, 0},
               {"signal", How::signal, SIGUSR1},
               {"signal=usr2", How::signal, SIGUSR2},
               {"finish", How::finish, 0}};
  EXPECT_EQ(parse({"p"}).resize.how, How::stop);
  for (const auto& each : cases) {
    const ResizeManner manner = parse({"--on-resize", each.text, "--resize-grace", "7", "p"}).resize;
    EXPECT_EQ(manner.how, each.how) << each.text;
    EXPECT_EQ(manner.signal, each.signal) << each.text;
    EXPECT_EQ(manner.grace, std::chrono::seconds(7));
  }
  EXPECT_THAT(complaint({"--on-resize", "wait", "p"}), HasSubstr("is not known"));
  for (const char* text : {"signal=", "signal=NONE", "signal=KILL"})
    EXPECT_THAT(complaint({"--on-resize", text, "p"}), HasSubstr("names no signal that ranks can handle")) << text;
  EXPECT_THAT(complaint({"--resize-grace", "-1", "p"}), HasSubstr("reading --resize-grace"));
}

TEST(FailureOptions, TheShutdownTimeoutHasThreeSources) {
  const Variables torch{{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "12"}};
  EXPECT_EQ(parse({"p"}, torch).shutdown_timeout, std::chrono::seconds(12));
  EXPECT_EQ(parse({"--shutdown-timeout=5", "p"}, torch).shutdown_timeout, std::chrono::seconds(5));
  const Variables both{{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "x"}, {"PET_SHUTDOWN_TIMEOUT", "6"}};
  EXPECT_EQ(parse({"p"}, both).shutdown_timeout, std::chrono::seconds(6));
  EXPECT_THAT(complaint({"p"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-1"}}),
              HasSubstr("reading TORCH_ELASTIC_SHUTDOWN_TIMEOUT"));
}

TEST(FailureOptions, TheMonitorIntervalIsNoticedOnTheCommandLineOnly) {
  EXPECT_THAT(parse({"--monitor-interval", "5", "p"}).notices,
              ElementsAre(HasSubstr("notices the end of a rank at once")));
  EXPECT_THAT(parse({"p"}, {{"PET_MONITOR_INTERVAL", "5"}}).notices, IsEmpty());
}

TEST(FailureOptions, WarmWorkersNamesModules) {
  EXPECT_EQ(parse({"p"}).warm_workers, "");
  EXPECT_EQ(parse({"--warm-workers", "p"}).warm_workers, "torch,torch._dynamo");
  EXPECT_EQ(parse({"--warm-workers=torch,numpy.linalg,_x1", "p"}).warm_workers, "torch,numpy.linalg,_x1");
  for (const char* wrong :
       {"--warm-workers=a b", "--warm-workers=a,,b", "--warm-workers=1a", "--warm-workers=a.", "--warm-workers=a;b"})
    EXPECT_THAT(complaint({wrong, "p"}), HasSubstr("names no modules")) << wrong;
}

TEST(FailureOptions, SignalsByDefault) {
  const auto options = parse({"p"});
  EXPECT_THAT(options.ending_signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_THAT(options.forwarded_signals, ElementsAre(SIGUSR1, SIGUSR2));
}

TEST(FailureOptions, AGivenListWinsOverTheOtherDefault) {
  const auto ending = parse({"--signals-to-handle", "SIGTERM, SIGUSR1,TERM", "p"});
  EXPECT_THAT(ending.ending_signals, ElementsAre(SIGTERM, SIGUSR1));
  EXPECT_THAT(ending.forwarded_signals, ElementsAre(SIGUSR2));
  const auto forwarded = parse({"--forward-signals", "HUP,sigwinch,SIGRTMIN+2", "p"});
  EXPECT_THAT(forwarded.ending_signals, ElementsAre(SIGTERM, SIGINT, SIGQUIT));
  EXPECT_THAT(forwarded.forwarded_signals, ElementsAre(SIGHUP, SIGWINCH, SIGRTMIN + 2));
  EXPECT_THAT(parse({"--forward-signals=", "p"}).forwarded_signals, IsEmpty());
  EXPECT_THAT(complaint({"--forward-signals", "USR1", "p"}, {{"PET_SIGNALS_TO_HANDLE", "TERM,SIGUSR1"}}),
              HasSubstr("SIGUSR1 is in --signals-to-handle and in --forward-signals"));
}

TEST(FailureOptions, UnknownSignalsToHandleAreNoticed) {
  const auto options = parse({"--signals-to-handle", "SIGTERM,SIGNOPE,SIGKILL", "p"});
  EXPECT_THAT(options.ending_signals, ElementsAre(SIGTERM));
  EXPECT_THAT(options.notices, ElementsAre(HasSubstr("'SIGNOPE'"), HasSubstr("SIGKILL")));
  EXPECT_THAT(complaint({"--forward-signals", "SIGNOPE", "p"}), HasSubstr("'SIGNOPE' is not a signal"));
  EXPECT_THAT(complaint({"--forward-signals", "CHLD", "p"}), HasSubstr("'CHLD' cannot be forwarded"));
}

TEST(SignalNames, WholeNamesOnly) {
  EXPECT_EQ(signal_number("TERM"), SIGTERM);
  EXPECT_EQ(signal_number("SIGRTMAX-1"), SIGRTMAX - 1);
  EXPECT_EQ(signal_number("RTMIN"), SIGRTMIN);
  for (const char* wrong : {"", "SIG", "15", "SIGSIGTERM", "TER", "RTMIN+", "RTMIN-1", "RTMIN+99", "RTMAX+1",
                            "RTMIN+99999999999", "RTMIN+-1", "RTMIN+1x"})
    EXPECT_FALSE(signal_number(wrong)) << wrong;
}

}  // namespace
}  // namespace ddp::launcher
