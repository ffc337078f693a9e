// The asking side of the peer channel: how each failure to answer is classified, and that asking ends by its
// deadline.
#include "world/peer_questions.hpp"

#include <poll.h>
#include <sys/socket.h>

#include "base/byte_stream.hpp"
#include "base/socket.hpp"
#include "unit/kvs/rank_threads.hpp"
#include "world/peer_channel.hpp"

namespace ddp::world {
namespace {

using base::to_bytes;
using base::to_text;
using Kind = PeerReply::Kind;

/// Accepts connections on loopback and does with each what the test wants.
class OddPeer {
 public:
  explicit OddPeer(std::function<void(base::UniqueFd)> react) : react_(std::move(react)) {
    thread_ = std::thread([this] {
      while (!stop_) {
        if (!base::wait_for(listener_.get(), POLLIN, Deadline::after(milliseconds(20)))) continue;
        base::UniqueFd fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
        if (fd) react_(std::move(fd));
      }
    });
  }
  OddPeer& operator=(OddPeer&&) = delete;
  ~OddPeer() {
    stop_ = true;
    thread_.join();
  }
  PeerEndpoint endpoint() const {
    return {.rank = 0, .address = "127.0.0.1", .port = base::local_port(listener_.get())};
  }

 private:
  base::UniqueFd listener_ = base::listen_tcp("127.0.0.1");
  std::function<void(base::UniqueFd)> react_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Asked {
  PeerReply reply;
  milliseconds took;
};

Asked ask(const PeerEndpoint& endpoint, milliseconds limit = seconds(10)) {
  const auto begin = Deadline::Clock::now();
  auto replies = ask_peers({endpoint}, "service", to_bytes("body"), Deadline::after(limit));
  EXPECT_EQ(replies.size(), 1U);
  return {std::move(replies.at(0)), std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - begin)};
}

PeerEndpoint closed_port() {
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  return {.rank = 0, .address = "127.0.0.1", .port = base::local_port(listener.get())};
}

TEST(PeerQuestions, NobodyListens) {
  const auto [reply, took] = ask(closed_port());
  EXPECT_EQ(reply.kind, Kind::refused);
  EXPECT_EQ(reply.problem, "ECONNREFUSED (111)");
  EXPECT_LT(took, seconds(8));
}

TEST(PeerQuestions, HangingUpIsNoProofOfDeath) {
  const OddPeer peer([](const base::UniqueFd&) {});
  const auto [reply, took] = ask(peer.endpoint());
  EXPECT_EQ(reply.kind, Kind::hung_up);
  EXPECT_FALSE(reply.problem.empty());
  EXPECT_LT(took, seconds(8));
}

TEST(PeerQuestions, HangingUpInTheMiddleOfTheAnswerIsNoProofOfDeath) {
  const Bytes answer = encode(PeerAnswer{.status = PeerStatus::ok, .body = to_bytes("long answer")});
  const OddPeer peer([&](const base::UniqueFd& fd) {
    base::send_all(fd.get(), std::span(answer).first(answer.size() - 1), test::soon(), "answering");
  });
  EXPECT_EQ(ask(peer.endpoint()).reply.kind, Kind::hung_up);
}

// The kernel accepts connections for a stopped process: it is there, but says nothing.
TEST(PeerQuestions, AListenerThatNeverAnswersIsNoAnswer) {
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  const PeerEndpoint endpoint{.rank = 0, .address = "127.0.0.1", .port = base::local_port(listener.get())};
  const auto [reply, took] = ask(endpoint, milliseconds(300));
  EXPECT_EQ(reply.kind, Kind::no_answer);
  EXPECT_FALSE(reply.problem.empty());
  EXPECT_GE(took, milliseconds(300));
  EXPECT_LT(took, seconds(8));
}

TEST(PeerQuestions, HalfAnAnswerIsNoAnswer) {
  std::vector<base::UniqueFd> kept;
  const OddPeer peer([&](base::UniqueFd fd) {
    base::send_all(fd.get(), to_bytes("DDP1"), test::soon(), "answering");
    kept.push_back(std::move(fd));
  });
  EXPECT_EQ(ask(peer.endpoint(), milliseconds(300)).reply.kind, Kind::no_answer);
}

TEST(PeerQuestions, GarbageIsAFailure) {
  std::vector<base::UniqueFd> kept;
  const OddPeer peer([&](base::UniqueFd fd) {
    base::send_all(fd.get(), to_bytes("HTTP/1.1 400 Bad Request\r\n\r\n"), test::soon(), "answering");
    kept.push_back(std::move(fd));
  });
  const auto [reply, took] = ask(peer.endpoint());
  EXPECT_EQ(reply.kind, Kind::failed);
  EXPECT_THAT(reply.problem, testing::HasSubstr("mark of libddp"));
  EXPECT_LT(took, seconds(8));
}

TEST(PeerQuestions, AnAddressThatIsNoneIsRefusal) {
  for (const std::string address : {"", "localhost", "256.1.1.1", "not an address"}) {
    EXPECT_EQ(ask({.rank = 0, .address = address, .port = 1}).reply.kind, Kind::refused) << address;
  }
}

TEST(PeerQuestions, AnswersAreInTheOrderOfTheEndpoints) {
  std::vector<std::unique_ptr<PeerChannel>> channels;
  std::vector<PeerEndpoint> endpoints;
  for (int i = 0; i < 6; ++i) {
    channels.push_back(std::make_unique<PeerChannel>("127.0.0.1"));
    channels.back()->serve("service", [i](std::span<const std::byte>) {
      std::this_thread::sleep_for(milliseconds(5 * (6 - i)));  // later ones answer earlier
      return to_bytes(std::to_string(i));
    });
    endpoints.push_back(
        {.rank = i, .address = "127.0.0.1", .port = channels.back()->port(), .token = channels.back()->token()});
  }
  endpoints.insert(endpoints.begin() + 3, closed_port());
  const auto replies = ask_peers(endpoints, "service", {}, test::soon());
  ASSERT_EQ(replies.size(), 7U);
  EXPECT_EQ(replies[3].kind, Kind::refused);
  for (const std::size_t i : {0U, 1U, 2U, 4U, 5U, 6U}) {
    ASSERT_EQ(replies[i].kind, Kind::answered) << replies[i].problem;
    EXPECT_EQ(to_text(replies[i].body), std::to_string(i < 3 ? i : i - 1));
  }
}

TEST(PeerQuestions, OneSilentPeerDoesNotHideTheOthers) {
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  PeerChannel channel{"127.0.0.1"};
  channel.serve("service", [](std::span<const std::byte>) { return Bytes{}; });
  const std::vector<PeerEndpoint> endpoints{
      {.rank = 0, .address = "127.0.0.1", .port = base::local_port(listener.get())},
      {.rank = 1, .address = "127.0.0.1", .port = channel.port(), .token = channel.token()}};
  const auto replies = ask_peers(endpoints, "service", {}, Deadline::after(milliseconds(400)));
  EXPECT_EQ(replies[0].kind, Kind::no_answer);
  EXPECT_EQ(replies[1].kind, Kind::answered);
}

TEST(PeerQuestions, MorePeersThanSocketsEndByTheDeadline) {
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  const PeerEndpoint silent{.rank = 0, .address = "127.0.0.1", .port = base::local_port(listener.get())};
  const auto begin = Deadline::Clock::now();
  const auto replies =
      ask_peers(std::vector<PeerEndpoint>(500, silent), "service", {}, Deadline::after(milliseconds(300)));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(10));
  ASSERT_EQ(replies.size(), 500U);
  for (const PeerReply& reply : replies) {
    EXPECT_TRUE(reply.kind == Kind::no_answer || reply.kind == Kind::not_asked);
    EXPECT_FALSE(reply.problem.empty());
  }
}

// A network that no route leads to: nothing is known of the peer.
TEST(PeerQuestions, AHostWithoutAWayIsNotRefusal) {
  const auto [reply, took] = ask({.rank = 0, .address = "255.255.255.255", .port = 1});
  EXPECT_EQ(reply.kind, Kind::unreachable) << reply.problem;
  EXPECT_LT(took, seconds(8));
}

TEST(PeerQuestions, ABusyPeerIsAskedAgain) {
  std::atomic<int> connections{0};
  const OddPeer peer([&](const base::UniqueFd& fd) {
    const bool busy = connections++ < 3;
    base::send_all(fd.get(),
                   encode(PeerAnswer{.status = busy ? PeerStatus::busy : PeerStatus::ok, .body = to_bytes("free")}),
                   test::soon(), "answering");
  });
  const auto reply = ask(peer.endpoint()).reply;
  EXPECT_EQ(reply.kind, Kind::answered) << reply.problem;
  EXPECT_EQ(connections, 4);
}

TEST(PeerQuestions, APeerThatStaysBusyIsAlive) {
  const OddPeer peer([](const base::UniqueFd& fd) {
    base::send_all(fd.get(), encode(PeerAnswer{.status = PeerStatus::busy}), test::soon(), "answering");
  });
  EXPECT_EQ(ask(peer.endpoint(), milliseconds(300)).reply.kind, Kind::busy);
}

/// What @p inquiry has heard by the time of @p limit.
std::vector<std::pair<std::size_t, PeerReply>> heard(PeerInquiry& inquiry, milliseconds limit = seconds(10)) {
  return inquiry.wait(Deadline::after(limit));
}

TEST(PeerInquiry, AQuestionStaysOpenUntilItIsAnswered) {
  PeerChannel channel{"127.0.0.1"};
  channel.serve("service", [](std::span<const std::byte>) {
    std::this_thread::sleep_for(milliseconds(300));
    return to_bytes("late");
  });
  PeerInquiry inquiry({{.rank = 0, .address = "127.0.0.1", .port = channel.port(), .token = channel.token()}},
                      "service", {});
  EXPECT_FALSE(inquiry.waiting());
  inquiry.ask(0);
  EXPECT_TRUE(heard(inquiry, milliseconds(50)).empty());
  EXPECT_TRUE(inquiry.asking(0));
  auto replies = heard(inquiry);
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].second.kind, Kind::answered);
  EXPECT_EQ(to_text(replies[0].second.body), "late");
  EXPECT_FALSE(inquiry.waiting());
}

// The asker itself may have been stopped: what has come meanwhile counts.
TEST(PeerInquiry, AnAnswerThatIsThereIsTakenAfterTheDeadline) {
  PeerChannel channel{"127.0.0.1"};
  channel.serve("service", [](std::span<const std::byte>) { return Bytes{}; });
  PeerInquiry inquiry({{.rank = 0, .address = "127.0.0.1", .port = channel.port(), .token = channel.token()}},
                      "service", {});
  inquiry.ask(0);
  const std::size_t at_once = heard(inquiry, milliseconds(0)).size();  // this sends the question
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_EQ(at_once + heard(inquiry, milliseconds(0)).size(), 1U);
}

TEST(PeerInquiry, AskingAgainGivesUpTheOpenQuestion) {
  std::vector<base::UniqueFd> kept;
  std::atomic<int> connections{0};
  const OddPeer peer([&](base::UniqueFd fd) {
    if (++connections == 1) {
      kept.push_back(std::move(fd));
    } else {
      base::send_all(fd.get(), encode(PeerAnswer{.status = PeerStatus::ok}), test::soon(), "answering");
    }
  });
  PeerInquiry inquiry({peer.endpoint()}, "service", {});
  inquiry.ask(0);
  EXPECT_TRUE(heard(inquiry, milliseconds(200)).empty());
  inquiry.ask(0);
  EXPECT_EQ(heard(inquiry).size(), 1U);
  EXPECT_EQ(connections, 2);
}

TEST(PeerQuestions, NoPeersNoAnswers) {
  EXPECT_TRUE(ask_peers({}, "service", {}, Deadline::after(seconds(0))).empty());
}

}  // namespace
}  // namespace ddp::world
