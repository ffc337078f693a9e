// What nodes tell while a step runs, and what srun's side makes of it: lines, and who hangs, with real processes that
// rest.
#include "step_program/step_desk.hpp"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/process.hpp"
#include "base/socket.hpp"
#include "step_program/hang_watch.hpp"
#include "store_server/store_server.hpp"

namespace ddp::srun_plugin {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StepNewsTest, ComeBackAsTheyWere) {
  const StepNews news{.kind = NewsKind::facts, .node = "n 1", .inquiry = 7, .content = base::to_bytes("abc")};
  EXPECT_EQ(decode_news(encode(news)), news);
  const Bytes whole = encode(news);
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(decode_news(std::span{whole}.first(size)), Error) << size;
  Bytes unknown = whole;
  unknown[1] = std::byte{200};
  EXPECT_THROW(decode_news(unknown), Error);
}

class StepDeskTest : public ::testing::Test {
 protected:
  static base::ChildProcess resting() {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (;;) ::pause();
    }
    return base::ChildProcess{pid};
  }
  std::unique_ptr<HangWatch> watch(const std::string& node) {
    return std::make_unique<HangWatch>(HangWatchOptions{.address = "127.0.0.1",
                                                        .port = server_.port(),
                                                        .node = node,
                                                        .local_tasks = 1,
                                                        .world_size = 2,
                                                        .after = 400ms});
  }
  /// What is said, until there is something or @p limit is over.
  static std::vector<std::string> serve(StepDesk& desk, const std::vector<HangWatch*>& nodes, Deadline limit) {
    while (!limit.expired()) {
      std::vector<pollfd> entries{{.fd = desk.fd(), .events = POLLIN, .revents = 0}};
      for (HangWatch* const node : nodes) entries.push_back({.fd = node->fd(), .events = POLLIN, .revents = 0});
      ::poll(entries.data(), entries.size(), 20);
      for (HangWatch* const node : nodes) node->advance();
      if (auto lines = desk.advance(); !lines.empty()) return lines;
    }
    return {};
  }

  store_server::StoreServer server_{{.listen_addresses = {"127.0.0.1"}}};
};

TEST_F(StepDeskTest, LinesOfAllNodesAreSaidOnceAndForgotten) {
  StepDesk desk(server_.port(), std::nullopt);
  StepStore a("127.0.0.1", server_.port());
  StepStore b("127.0.0.1", server_.port());
  tell_line(a, "n0", "first");
  tell_line(b, "n1", "second");
  tell_line(a, "n0", "third");
  std::vector<std::string> lines;
  for (const Deadline limit = Deadline::after(60s); lines.size() < 3 && !limit.expired();) {
    for (std::string& line : serve(desk, {}, limit)) lines.push_back(std::move(line));
  }
  EXPECT_THAT(lines, ElementsAre("first", "second", "third"));
  EXPECT_THAT(desk.advance(), IsEmpty());
  EXPECT_EQ(a.get({"ddp-step/news/1"}).front(), Bytes{}) << "the store keeps what was read";
}

TEST_F(StepDeskTest, WhoHangsIsToldOnceNoNodesRanksGetOn) {
  const base::ChildProcess first = resting();
  const base::ChildProcess second = resting();
  StepDesk desk(server_.port(), 400ms);
  const auto n0 = watch("n0");
  const auto n1 = watch("n1");
  n0->started(0, first.pid());
  n1->started(1, second.pid());
  const auto lines = serve(desk, {n0.get(), n1.get()}, Deadline::after(60s));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("srun --ddp: no progress for 0.4 s: "), HasSubstr("rank")));
  EXPECT_THAT(serve(desk, {n0.get(), n1.get()}, Deadline::after(600ms)), IsEmpty()) << "once";
}

TEST_F(StepDeskTest, AStepInWhichANodeGetsOnDoesNotHang) {
  const base::ChildProcess rests = resting();
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (volatile unsigned i = 0;;) i = i + 1;
  }
  const base::ChildProcess computes{pid};
  StepDesk desk(server_.port(), 400ms);
  const auto n0 = watch("n0");
  const auto n1 = watch("n1");
  n0->started(0, rests.pid());
  n1->started(1, computes.pid());
  EXPECT_THAT(serve(desk, {n0.get(), n1.get()}, Deadline::after(1200ms)), IsEmpty());
  n1->ended(1);  // now nobody does
  EXPECT_THAT(serve(desk, {n0.get(), n1.get()}, Deadline::after(60s)), ElementsAre(HasSubstr("no progress")));
}

}  // namespace
}  // namespace ddp::srun_plugin
