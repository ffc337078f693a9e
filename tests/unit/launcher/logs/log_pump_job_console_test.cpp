// A node's log pump whose console is the job's, which the test is.
#include "unit/launcher/logs/log_pump_fixture.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kWindow = std::size_t{64} << 10U;
constexpr std::size_t kConsoleBatch = std::size_t{128} << 10U;  // more than a message with a usual line has

class JobConsolePump : public LogPumpTest {
 protected:
  LogPumpOptions connected() {
    control::ConnectionPair pair = control::make_pair();
    console_.emplace(std::move(pair.second), "the pump");
    LogPumpOptions result = options();
    result.job_console = std::make_shared<control::Connection>(std::move(pair.first), "the job's console");
    result.epoch = 5;
    result.job_console_window_bytes = kWindow;
    return result;
  }
  /// Receives until the text of a stream has @p bytes, and takes the messages if @p take.
  void receive(std::size_t bytes, bool take, bool error = false) {
    const Deadline deadline = generous();
    while (text_[error].size() < bytes && !deadline.expired()) {
      receive_some(take);
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  void receive_some(bool take) {
    for (const control::Message& message : console_->receive()) {
      const auto& output = std::get<control::ConsoleOutput>(message);
      EXPECT_EQ(output.epoch, 5);
      for (const control::ConsolePiece& piece : output.pieces) {
        if (piece.begins) text_[output.error] += piece.prefix;
        text_[output.error] += piece.text;
        if (piece.ends && piece.writer != control::kWholeLines && !piece.unprefixed) text_[output.error] += "\n";
      }
      ++untaken_[output.error];
    }
    if (take) take_all();
  }
  void take_all() {
    for (auto& [error, messages] : untaken_) {
      if (messages > 0) console_->send(control::ConsoleTaken{.epoch = 5, .error = error, .messages = messages});
      messages = 0;
    }
  }
  std::string lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += std::to_string(i) + std::string(99, 'x') + "\n";
    return text;
  }

  std::optional<control::Connection> console_;
  std::map<bool, std::string> text_;
  std::map<bool, std::int64_t> untaken_;
};

TEST_F(JobConsolePump, TheEndWaitsUntilAllIsTaken) {
  LogPump pump{connected()};
  base::UniqueFd out = pump.add(to_console(0, true));
  base::UniqueFd err = pump.add(to_console(1, false, Stream::err));
  pump.start();
  const std::string lengthy(150'000, 'x');
  write_all(out.get(), "one\ntwo\n" + lengthy + "\n");
  std::string expected = "[default0]:one\n[default0]:two\n[default0]:" + lengthy + "\n";
  receive(expected.size(), true);
  write_all(out.get(), "end\n");
  write_all(err.get(), "three\n");
  expected += "[default0]:end\n";
  receive(expected.size(), false);
  receive(6, false, true);
  EXPECT_TRUE(text_[false] == expected);
  EXPECT_EQ(text_[true], "three\n");
  out.reset();
  err.reset();
  std::future<void> finished = std::async(std::launch::async, [&] { pump.finish(kGenerous); });
  EXPECT_EQ(finished.wait_for(milliseconds(200)), std::future_status::timeout);
  take_all();
  EXPECT_EQ(finished.wait_for(kGenerous), std::future_status::ready);
  EXPECT_EQ(out_.text() + err_.text(), "");
}

TEST_F(JobConsolePump, NoMoreThanAWindowIsOnItsWayAndRanksWait) {
  LogPump pump{connected()};
  base::UniqueFd out = pump.add(to_console(0, false));
  pump.start();
  const std::string sent = lines(50'000);
  std::future<void> writing = std::async(std::launch::async, [&] {
    write_all(out.get(), sent);
    out.reset();
  });
  receive(kWindow, false);
  EXPECT_EQ(writing.wait_for(milliseconds(300)), std::future_status::timeout);  // the rank waits
  receive_some(false);
  EXPECT_LT(text_[false].size(), kWindow + kConsoleBatch);
  take_all();
  receive(sent.size(), true);
  EXPECT_TRUE(text_[false] == sent);
  writing.get();
  pump.finish(kGenerous);
}

TEST_F(JobConsolePump, WhatWasNotTakenGoesToTheOwnConsoleWhenTheJobsIsLost) {
  LogPump pump{connected()};
  base::UniqueFd out = pump.add(to_console(0, false));
  pump.start();
  const std::string sent = lines(3'000);
  std::future<void> writing = std::async(std::launch::async, [&] { write_all(out.get(), sent); });
  receive(1, true);
  const std::size_t taken = text_[false].size();
  receive(taken + 1, false);  // lost with the console
  console_.reset();
  writing.get();
  write_all(out.get(), "last\n");
  out.reset();
  pump.finish(kGenerous);
  const std::string expected = sent + "last\n";
  const std::string own = out_.text();
  // What was taken may be there again, where the console had not said so in time.
  EXPECT_TRUE(expected.ends_with(own));
  EXPECT_GE(own.size(), expected.size() - taken);
}

TEST_F(JobConsolePump, TheEndGivesUpAConsoleThatTakesNothing) {
  LogPump pump{connected()};
  StreamRoute teed = to_console(0, true);
  teed.file = folder_ / "0.log";
  base::UniqueFd out = pump.add(teed);
  pump.start();
  const std::string sent = lines(3'000);
  write_all(out.get(), sent);
  const Deadline late = generous();
  testing::internal::CaptureStderr();
  pump.finish(milliseconds(300));
  EXPECT_FALSE(late.expired());
  EXPECT_TRUE(content_of(folder_ / "0.log") == sent);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              MatchesRegex("ddprun: .*: standard output was not read in time: [0-9]+ bytes of the ranks' output were "
                           "not written to it\n"));
}

}  // namespace
}  // namespace ddp::launcher
