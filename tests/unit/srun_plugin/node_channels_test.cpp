// Tasks are real processes here, as slurmstepd forks them.
#include "task_side/node_channels.hpp"

#include <poll.h>

#include "base/byte_stream.hpp"
#include "base/socket.hpp"

namespace ddp::srun_plugin {
namespace {

using base::to_bytes;
using base::to_text;

Deadline patience() { return Deadline::after(std::chrono::seconds(60)); }

/// Runs @p task in a process each; their exit statuses.
std::vector<int> run_tasks(std::uint32_t count, const std::function<int(std::uint32_t)>& task) {
  std::vector<pid_t> children;
  for (std::uint32_t i = 0; i < count; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(task(i));
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = -1;
    if (child < 0 || ::waitpid(child, &status, 0) != child) status = -1;
    statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  return statuses;
}

TEST(NoticeBoard, OneTaskAnswersForAll) {
  constexpr std::uint32_t kTasks = 6;
  NoticeBoard board(kTasks);
  const auto statuses = run_tasks(kTasks, [&](std::uint32_t task) {
    board.offer(task, to_bytes("task " + std::to_string(task)));
    if (task != 0) {
      const auto answer = board.wait_answer(patience());
      return answer && to_text(*answer) == "for all" ? 0 : 1;
    }
    const auto offers = board.offers(patience());
    if (!offers || offers->size() != kTasks) return 2;
    for (std::uint32_t i = 0; i < kTasks; ++i) {
      if (to_text((*offers)[i]) != "task " + std::to_string(i)) return 3;
    }
    return board.answer(to_bytes("for all")) ? 0 : 4;
  });
  EXPECT_THAT(statuses, Each(0));
}

TEST(NoticeBoard, ATaskThatDiesHoldsUpNoOther) {
  NoticeBoard board(3);
  const auto statuses = run_tasks(3, [&](std::uint32_t task) {
    if (task == 1) return 0;  // before it has posted
    board.offer(task, to_bytes("here"));
    if (task != 0) return board.wait_answer(patience()) ? 0 : 1;
    const auto start = Deadline::Clock::now();
    if (board.offers(Deadline::after(milliseconds(300)))) return 2;
    if (Deadline::Clock::now() - start < milliseconds(290)) return 3;
    return board.answer({}) ? 0 : 4;
  });
  EXPECT_THAT(statuses, Each(0));
}

TEST(NoticeBoard, WithoutAnAnswerTheWaitEnds) {
  const NoticeBoard board(2);
  const auto start = Deadline::Clock::now();
  EXPECT_EQ(board.wait_answer(Deadline::after(milliseconds(200))), std::nullopt);
  EXPECT_GE(Deadline::Clock::now() - start, milliseconds(190));
  EXPECT_EQ(board.wait_answer(Deadline::after(milliseconds(0))), std::nullopt);
}

TEST(NoticeBoard, AnEmptyAnswerIsOne) {
  NoticeBoard board(1);
  board.answer({});
  EXPECT_EQ(board.wait_answer(patience()), Bytes{});
}

TEST(NoticeBoard, WhatIsTooLongIsPostedAsNothing) {
  constexpr std::size_t kMost = NoticeBoard::kOfferBytes - sizeof(std::uint32_t);
  NoticeBoard board(3);
  board.offer(0, Bytes(kMost, std::byte{1}));
  board.offer(1, Bytes(kMost + 1, std::byte{2}));
  board.offer(2, to_bytes("short"));
  const auto offers = board.offers(patience());
  ASSERT_TRUE(offers);
  EXPECT_THAT(*offers, ElementsAre(Bytes(kMost, std::byte{1}), Bytes{}, to_bytes("short")));
}

TEST(NoticeBoard, AnAnswerThatIsTooLongIsAnEmptyOne) {
  const std::size_t most = 2 * NoticeBoard::kAnswerBytesPerTask;
  NoticeBoard full(2);
  EXPECT_TRUE(full.answer(Bytes(most, std::byte{7})));
  EXPECT_EQ(full.wait_answer(patience()), Bytes(most, std::byte{7}));
  NoticeBoard board(2);
  board.offer(1, to_bytes("mine"));
  EXPECT_FALSE(board.answer(Bytes(most + 1, std::byte{7})));
  EXPECT_EQ(board.wait_answer(patience()), Bytes{});
  board.offer(0, {});
  EXPECT_THAT(board.offers(patience()).value(), ElementsAre(Bytes{}, to_bytes("mine")));
}

TEST(NoticeBoard, UnknownTasksDoNotCount) {
  NoticeBoard board(2);
  EXPECT_EQ(board.tasks(), 2U);
  board.offer(2, to_bytes("who?"));
  board.offer(0, to_bytes("zero"));
  EXPECT_EQ(board.offers(Deadline::after(milliseconds(50))), std::nullopt);
  board.offer(1, to_bytes("one"));
  EXPECT_THAT(board.offers(patience()).value(), ElementsAre(to_bytes("zero"), to_bytes("one")));
}

TEST(NoticeBoard, ItsPagesEndWithIt) {
  const auto maps = [] {
    std::vector<std::string> shared;
    FILE* const file = std::fopen("/proc/self/maps", "r");
    char line[4096];
    while (file != nullptr && std::fgets(line, sizeof line, file) != nullptr) {
      if (std::string(line).find("/dev/zero") != std::string::npos) shared.emplace_back(line);
    }
    if (file != nullptr) std::fclose(file);
    return shared.size();
  };
  const std::size_t before = maps();
  {
    const NoticeBoard board(64);
    EXPECT_EQ(maps(), before + 1);
  }
  EXPECT_EQ(maps(), before);
}

/// A stop for each end would be paid by steps of many tasks: only what Slurm may cut short is waited for.
TEST(EndChannelTest, SlurmstepdAwaitsFailuresAndTheLastEnd) {
  EndChannel channel(3);
  const pid_t witness = ::fork();
  if (witness == 0) {
    const int fd = channel.witness_end();
    std::vector<std::uint64_t> awaited;
    for (bool ended = false; !ended && awaited.size() < 3;) {
      if (!base::wait_for(fd, POLLIN, Deadline::after(std::chrono::seconds(60)))) break;
      const TaskNews news = take_news(fd, ended);
      const auto* const end = std::get_if<TaskEnd>(&news);
      if (end == nullptr) continue;
      awaited.push_back(end->awaited);
      if (end->awaited != 0) confirm_end(fd);
    }
    ::_exit(awaited == std::vector<std::uint64_t>{0, 1, 1} ? 0 : 1);
  }
  channel.tell({.task = 2, .status = 0, .when_ms = 1});
  channel.tell({.task = 0, .status = 1 << 8, .when_ms = 2});
  channel.tell({.task = 1, .status = 0, .when_ms = 3});
  int status = -1;
  ASSERT_EQ(::waitpid(witness, &status, 0), witness);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ddp::srun_plugin
