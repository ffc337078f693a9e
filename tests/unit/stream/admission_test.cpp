// Who proves to belong is handed on; who is silent, slow, wrong or one too many is hung up on, and no longer holds up
// anybody where there are no descriptors.
#include "stream/admission.hpp"

#include <poll.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "support/no_descriptors_left.hpp"

namespace ddp::stream {
namespace {

using Reason = Refusal::Reason;

/// "hi" is answered by "yes", and "go" proves.
class Greeted final : public Conversation {
 public:
  Bytes answer() override { return std::exchange(answer_, {}); }
  std::size_t due() const override { return 2 - heard_.size(); }
  void take(std::span<const std::byte> bytes) override {
    for (const std::byte byte : bytes) heard_ += std::to_integer<char>(byte);
    if (heard_.size() < 2) return;
    if (heard_ != (believed_ ? "go" : "hi"))
      throw Error{{.code = ErrorCode::protocol, .attempted = "greeting", .cause = "it says " + heard_}};
    heard_.clear();
    proven_ = believed_;
    if (!believed_) answer_ = {std::byte{'y'}, std::byte{'e'}, std::byte{'s'}};
    believed_ = true;
  }
  bool believed() const override { return believed_; }
  bool proven() const override { return proven_; }

 private:
  std::string heard_;
  Bytes answer_;
  bool believed_ = false;
  bool proven_ = false;
};

struct AdmissionTest : ::testing::Test {
  void open(const StrangerLimits& limits) {
    std::vector<base::UniqueFd> sockets;
    sockets.push_back(base::listen_tcp("127.0.0.1"));
    port_ = base::local_port(sockets.front().get());
    admission_.emplace(loop_, std::move(sockets), limits,
                       Admission::Handlers{.greet = [](int) { return std::make_unique<Greeted>(); },
                                           .proven = [this](base::UnsharedFd socket, const sockaddr_storage&,
                                                            auto) { proven_.push_back(std::move(socket)); },
                                           .refused =
                                               [this](const Refusal& refusal) {
                                                 reasons_.push_back(refusal.reason);
                                                 texts_.push_back(refusal.text);
                                               },
                                           .no_room = [this](const std::string& cause) { no_room_ = cause; }});
  }
  base::UniqueFd come(const std::string& says = "") {
    base::UniqueFd fd = base::connect_tcp("127.0.0.1", port_, Deadline::after(60s));
    say(fd, says);
    return fd;
  }
  static void say(const base::UniqueFd& fd, const std::string& text) {
    base::send_all(fd.get(), std::as_bytes(std::span{text}), Deadline::after(60s), "saying in a test");
  }
  template <class Condition>
  bool serve_until(Condition condition) {
    for (const Deadline limit = Deadline::after(60s); !condition() && !limit.expired();)
      loop_.run_once(Deadline::after(10ms));
    return condition();
  }
  bool hung_up(const base::UniqueFd& fd) {
    return serve_until([&] {
      char byte = 0;
      return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    });
  }

  EventLoop loop_;
  std::vector<base::UnsharedFd> proven_;
  std::vector<Reason> reasons_;
  std::vector<std::string> texts_;
  std::string no_room_;
  std::uint16_t port_ = 0;
  std::optional<Admission> admission_;
};

TEST_F(AdmissionTest, WhoProvesIsHandedOn) {
  open({});
  const base::UniqueFd at_once = come("higo");
  const base::UniqueFd slow = come("h");
  ASSERT_TRUE(serve_until([&] { return proven_.size() == 1 && admission_->size() == 1; }));
  say(slow, "ig");
  ASSERT_TRUE(serve_until([&] { return base::wait_for(slow.get(), POLLIN, Deadline::after(0s)); }));
  Bytes answer(3);
  base::receive_exactly(slow.get(), answer, Deadline::after(60s), "reading the answer");
  EXPECT_EQ(proven_.size(), 1U);
  say(slow, "o and more");
  ASSERT_TRUE(serve_until([&] { return proven_.size() == 2; }));
  EXPECT_EQ(admission_->size(), 0U);
  EXPECT_TRUE(reasons_.empty());
  Bytes more(9);  // is not read
  base::receive_exactly(proven_.back().get(), more, Deadline::after(60s), "reading what follows");
}

TEST_F(AdmissionTest, WhoIsWrongOrGoneIsGivenUp) {
  open({});
  const base::UniqueFd wrong = come("GET / HTTP/1.1");
  EXPECT_TRUE(hung_up(wrong));
  come();
  ASSERT_TRUE(serve_until([&] { return reasons_.size() == 2; }));
  EXPECT_EQ(reasons_, (std::vector{Reason::wrong, Reason::gone}));
  EXPECT_EQ(texts_.front(), "it says GE");
}

TEST_F(AdmissionTest, WhoSaysNothingHasLessTimeThanWhoIsSlow) {
  open({.patience = 600ms, .silence = 100ms});
  const auto begin = std::chrono::steady_clock::now();
  const base::UniqueFd slow = come("h");
  const base::UniqueFd silent = come();
  EXPECT_TRUE(hung_up(silent));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms);
  EXPECT_TRUE(hung_up(slow));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 600ms);
  EXPECT_EQ(reasons_, (std::vector{Reason::silent, Reason::late}));
}

TEST_F(AdmissionTest, OneTooManyTakesThePlaceOfTheOldestThatHasSaidNothing) {
  open({.most = 2});
  const base::UniqueFd believed = come("hi");
  ASSERT_TRUE(serve_until([&] { return admission_->size() == 1; }));
  const base::UniqueFd silent = come();
  ASSERT_TRUE(serve_until([&] { return admission_->size() == 2; }));
  const base::UniqueFd next = come("h");
  EXPECT_TRUE(hung_up(silent));
  EXPECT_EQ(reasons_, std::vector{Reason::crowded});
  say(believed, "go");
  EXPECT_TRUE(serve_until([&] { return proven_.size() == 1; }));
}

TEST_F(AdmissionTest, WithoutDescriptorsItPausesAndGoesOnByItself) {
  open({.crowd = 2});
  const base::UniqueFd first = come("h");
  ASSERT_TRUE(serve_until([&] { return admission_->size() == 1; }));
  const base::UniqueFd second = come("higo");
  {
    const test::NoDescriptorsLeft none_left;
    ASSERT_TRUE(serve_until([&] { return !no_room_.empty(); }));
    loop_.run_once(Deadline::after(0s));
    pollfd entry{.fd = loop_.fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&entry, 1, 0), 0);  // the client does not wake it all the time
  }
  EXPECT_EQ(no_room_, "Too many open files [EMFILE (24)]");
  EXPECT_TRUE(serve_until([&] { return proven_.size() == 1; }));
  EXPECT_TRUE(reasons_.empty());
}

TEST_F(AdmissionTest, WithoutDescriptorsACrowdGivesOneUp) {
  open({.crowd = 1});
  const base::UniqueFd first = come("h");
  ASSERT_TRUE(serve_until([&] { return admission_->size() == 1; }));
  const base::UniqueFd second = come("higo");
  const test::NoDescriptorsLeft none_left;
  EXPECT_TRUE(serve_until([&] { return proven_.size() == 1; }));
  EXPECT_EQ(reasons_, std::vector{Reason::crowded});
  EXPECT_TRUE(no_room_.empty());
}

TEST_F(AdmissionTest, IsGoneWhenClosed) {
  open({});
  const base::UniqueFd waiting = come("h");
  ASSERT_TRUE(serve_until([&] { return admission_->size() == 1; }));
  admission_->close();
  EXPECT_TRUE(hung_up(waiting));
  EXPECT_TRUE(admission_->sockets().empty());
  EXPECT_THROW(come(), Error);
}

/// A socket whose other end can speak.
TEST(Converse, EndsWithTheProofTheEndOrTheDeadline) {
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  const auto with = [&](const std::string& says, bool closes) {
    const base::UniqueFd fd = base::connect_tcp("127.0.0.1", base::local_port(listener.get()), Deadline::after(60s));
    base::UniqueFd other{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    base::send_all(other.get(), std::as_bytes(std::span{says}), Deadline::after(60s), "saying in a test");
    if (closes) ::shutdown(other.get(), SHUT_WR);
    Greeted greeted;
    try {
      converse(fd.get(), greeted, Deadline::after(closes ? 60s : 20ms), "talking");
    } catch (const Error& error) {
      EXPECT_FALSE(greeted.proven());
      return std::optional{error.code()};
    }
    EXPECT_TRUE(greeted.proven());
    return std::optional<ErrorCode>{};
  };
  EXPECT_EQ(with("higo", false), std::nullopt);
  EXPECT_EQ(with("hig", true), ErrorCode::peer_lost);
  EXPECT_EQ(with("hi", false), ErrorCode::timeout);
  EXPECT_EQ(with("no", false), ErrorCode::protocol);
}

}  // namespace
}  // namespace ddp::stream
