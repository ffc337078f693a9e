// Standard input reaches rank 0 whole, and what it does not read stays for others, whatever kind of input it is.
#include "launch/job_input.hpp"

#include <sys/socket.h>

#include "agent/input_feed.hpp"

namespace ddp::launcher {
namespace {

std::string text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::string read_text(int fd, std::size_t most) {
  std::string text(most, '\0');
  const ssize_t size = ::read(fd, text.data(), text.size());
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

enum class InputKind { file, pipe, socket };

/// An input with @p text, and its end unless @p open.
struct OpenInput {
  explicit OpenInput(InputKind kind, const std::string& text) {
    if (kind == InputKind::file) {
      std::string name = testing::TempDir() + "job_input_XXXXXX";
      reading.reset(::mkstemp(name.data()));
      ::unlink(name.c_str());
      writing.reset(::dup(reading.get()));
      write(text);
      ::lseek(reading.get(), 0, SEEK_SET);
      return;
    }
    std::array<int, 2> ends{};
    const bool pipe = kind == InputKind::pipe;
    if ((pipe ? ::pipe(ends.data()) : ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data())) != 0) throw std::bad_alloc();
    reading.reset(ends[0]);
    writing.reset(ends[1]);
    write(text);
  }
  void write(const std::string& text) const {
    EXPECT_EQ(::write(writing.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  base::UniqueFd reading;
  base::UniqueFd writing;
};

class JobInputKinds : public testing::TestWithParam<InputKind> {};
INSTANTIATE_TEST_SUITE_P(All, JobInputKinds, testing::Values(InputKind::file, InputKind::pipe, InputKind::socket));

TEST_P(JobInputKinds, PeekingTakesNothing) {
  const OpenInput input{GetParam(), "one\ntwo\nthree\n"};
  InputSource source{input.reading.get()};
  EXPECT_EQ(text_of(source.peek(100).value()), "one\ntwo\nthree\n");
  source.take(4);
  EXPECT_EQ(text_of(source.peek(3).value()), "two");
  EXPECT_EQ(text_of(source.peek(100).value()), "two\nthree\n");
  source.take(0);
  EXPECT_EQ(read_text(input.reading.get(), 4), "two\n");
}

TEST_P(JobInputKinds, WhatRankZeroHasNotReadStaysForOthers) {
  const OpenInput input{GetParam(), "mine\nyours\n"};
  stream::EventLoop loop;
  std::string sent;
  {
    JobInput job{loop, input.reading.get(), [&](const control::Input& piece) { sent += text_of(piece.data); }};
    EXPECT_EQ(sent, "");
    job.begin(true);
    EXPECT_EQ(sent, "mine\nyours\n");
    loop.run_once(Deadline::after(0ms));
    job.taken(5);
    EXPECT_EQ(sent, "mine\nyours\n");
  }
  EXPECT_EQ(read_text(input.reading.get(), 100), "yours\n");
}

TEST_P(JobInputKinds, ANewNodeGetsWhatTheLastOneHasNotRead) {
  const OpenInput input{GetParam(), "first\nsecond\n"};
  stream::EventLoop loop;
  std::string sent;
  JobInput job{loop, input.reading.get(), [&](const control::Input& piece) { sent = text_of(piece.data); }};
  job.begin(true);
  job.taken(6);
  job.begin(false);
  EXPECT_EQ(sent, "first\nsecond\n");
  job.begin(true);
  EXPECT_EQ(sent, "second\n");
}

TEST_P(JobInputKinds, MoreFollowsOnceItHasBeenRead) {
  OpenInput input{GetParam(), "a"};
  stream::EventLoop loop;
  std::vector<std::string> sent;
  JobInput job{loop, input.reading.get(),
               [&](const control::Input& piece) { sent.push_back(piece.end ? "end" : text_of(piece.data)); }};
  job.begin(true);
  if (GetParam() != InputKind::file) {
    input.write("b");
    loop.run_once(Deadline::after(0ms));
    EXPECT_EQ(sent.size(), 1U);
    job.taken(1);
    EXPECT_EQ(sent.at(1), "b");
    job.taken(1);
    EXPECT_EQ(sent.size(), 2U);
    input.write("c");
    loop.run_once(Deadline::after(10s));
    EXPECT_EQ(sent.at(2), "c");
  }
  input.writing.reset();
  job.taken(1);
  EXPECT_EQ(sent.back(), "end");
}

TEST(JobInput, LongInputComesWhole) {
  std::string name = testing::TempDir() + "job_input_XXXXXX";
  const base::UniqueFd file{::mkstemp(name.data())};
  ::unlink(name.c_str());
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += std::to_string(i) + "\n";
  ASSERT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::lseek(file.get(), 0, SEEK_SET);
  const base::UniqueFd rank{::open("/dev/null", O_RDONLY)};  // its standard input
  stream::EventLoop loop;
  JobInput* job = nullptr;
  InputFeed feed{loop, [&](std::int64_t bytes) { job->taken(bytes); }, rank.get()};
  JobInput input{loop, file.get(), [&](const control::Input& piece) { feed.add(piece.data, piece.end); }};
  job = &input;
  input.begin(true);
  std::string got;
  for (std::string part = read_text(rank.get(), 1000); !part.empty(); part = read_text(rank.get(), 1000)) {
    got += part;
    loop.run_once(Deadline::after(0ms));
  }
  EXPECT_TRUE(got == text);
}

TEST(InputFeed, KnowsWhatHasBeenReadToTheByte) {
  const base::UniqueFd rank{::open("/dev/null", O_RDONLY)};
  stream::EventLoop loop;
  std::int64_t taken = 0;
  InputFeed feed{loop, [&](std::int64_t bytes) { taken += bytes; }, rank.get()};
  const std::string text = "one\ntwo\n";
  const auto bytes = std::as_bytes(std::span{text});
  feed.add({bytes.begin(), bytes.end()}, true);
  EXPECT_EQ(read_text(rank.get(), 4), "one\n");
  loop.run_once(Deadline::after(0ms));
  EXPECT_EQ(taken, 0);
  feed.report();
  EXPECT_EQ(taken, 4);
  EXPECT_EQ(read_text(rank.get(), 100), "two\n");
  loop.run_once(Deadline::after(10s));
  EXPECT_EQ(taken, 8);
  EXPECT_EQ(read_text(rank.get(), 100), "");  // the end
}

}  // namespace
}  // namespace ddp::launcher
