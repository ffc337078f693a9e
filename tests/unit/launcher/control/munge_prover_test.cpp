// Munge proves the user of the other side, for one connection only, and says by name what it does not accept.
#include "control/munge.hpp"

#include <poll.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "support/error_of.hpp"
#include "support/munge_daemon.hpp"
#include "unit/launcher/control/handshake_ends.hpp"

namespace ddp::launcher::control {
namespace {

using ddp::test::error_of;
using ddp::test::MungeDaemon;

stream::Statement statement_of(int number) {
  stream::Statement statement{};
  statement.front() = static_cast<std::byte>(number);
  return statement;
}

struct MungeTest : testing::Test {
  void SetUp() override {
    if (!MungeDaemon::installed()) GTEST_SKIP() << "there is no munged";
    daemon_.emplace();
  }
  static MungeProver prover(const MungeDaemon& daemon) { return MungeProver{Munge{daemon.socket()}}; }

  std::optional<MungeDaemon> daemon_;
};

TEST_F(MungeTest, ProvesTheUserOnceForOneStatement) {
  MungeProver one = prover(*daemon_);
  MungeProver other = prover(*daemon_);
  EXPECT_EQ(Munge{daemon_->socket()}.user(), ::geteuid());
  const Bytes proof = one.prove(statement_of(1));
  EXPECT_LE(proof.size(), stream::kMaxProofBytes);
  EXPECT_FALSE(error_of([&] { other.check(proof, statement_of(1)); }));
  EXPECT_THAT(error_of([&] { other.check(proof, statement_of(1)); })->native(), HasSubstr("EMUNGE_CRED_REPLAYED (17)"));
  EXPECT_THAT(error_of([&] { other.check(one.prove(statement_of(1)), statement_of(2)); })->cause(),
              HasSubstr("made for something else"));
}

TEST_F(MungeTest, WhatIsNoCredentialIsAConflict) {
  MungeProver munge = prover(*daemon_);
  for (const std::string& text : {std::string{}, std::string{"x"}, std::string{"MUNGE:x:"}, std::string(1000, 'A')}) {
    const auto error = error_of([&] { munge.check(std::as_bytes(std::span{text}), statement_of(1)); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::conflict) << error->what();
  }
}

TEST_F(MungeTest, AnotherKeyIsNamed) {
  const MungeDaemon stranger;
  const Error error =
      error_of([&] { prover(*daemon_).check(prover(stranger).prove(statement_of(1)), statement_of(1)); }).value();
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("EMUNGE_CRED_INVALID (14)"), HasSubstr("the same munge.key")));
}

TEST_F(MungeTest, ClocksThatDifferAreNamedWithBothTimes) {
  const MungeDaemon early{&*daemon_, -3600};
  const MungeDaemon late{&*daemon_, 3600};
  const auto expired = error_of([&] { prover(*daemon_).check(prover(early).prove(statement_of(1)), statement_of(1)); });
  const auto rewound = error_of([&] { prover(*daemon_).check(prover(late).prove(statement_of(1)), statement_of(1)); });
  ASSERT_TRUE(expired && rewound);
  EXPECT_THAT(expired->what(),
              AllOf(HasSubstr("EMUNGE_CRED_EXPIRED (15)"), HasSubstr("made at "), HasSubstr("clocks")));
  EXPECT_THAT(rewound->what(),
              AllOf(HasSubstr("EMUNGE_CRED_REWOUND (16)"), HasSubstr("made at "), HasSubstr("clocks")));
}

TEST_F(MungeTest, ADeadOneIsSaidSoon) {
  const auto nowhere = error_of([] { Munge{"/no/such/socket"}; });
  daemon_->end();
  const auto begin = std::chrono::steady_clock::now();
  const auto dead = error_of([&] { Munge{daemon_->socket()}; });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  ASSERT_TRUE(nowhere && dead);
  for (const Error& error : {*nowhere, *dead}) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("munged does not answer"), HasSubstr("EMUNGE_SOCKET (6)"), HasSubstr("start munged")));
  }
}

// ---- over a connection

Provers by(const std::shared_ptr<Prover>& prover) {
  return [prover](const Announcement&) { return prover; };
}

TEST_F(MungeTest, OpensTheDoorToTheSameUser) {
  ServedListener server{std::make_shared<MungeProver>(Munge{daemon_->socket()})};
  for (int i = 0; i < 3; ++i) {
    Connection connection =
        connect({"127.0.0.1"}, server.port(), by(std::make_shared<MungeProver>(Munge{daemon_->socket()})), soon());
    EXPECT_EQ(received(connection), 1U);
  }
  EXPECT_EQ(server.proven(), 3);
}

TEST_F(MungeTest, WhoHasAnotherKeyIsRefusedWithTheReason) {
  const MungeDaemon stranger;
  testing::internal::CaptureStderr();
  std::optional<Error> error;
  {
    ServedListener server{std::make_shared<MungeProver>(Munge{daemon_->socket()})};
    error = error_of([&] {
      connect({"127.0.0.1"}, server.port(), by(std::make_shared<MungeProver>(Munge{stranger.socket()})), soon());
    });
    EXPECT_EQ(server.proven(), 0);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("EMUNGE_CRED_INVALID (14)"));
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), AllOf(HasSubstr("does not accept this node's munge credential"), HasSubstr("munge.key")));
}

TEST_F(MungeTest, AMungedThatHangsIsNamedWhenTheTimeIsOver) {
  Listener listener{{"127.0.0.1"}, 0, std::make_shared<MungeProver>(Munge{daemon_->socket()}), 500ms};
  const base::UniqueFd client = raw(listener.port());
  daemon_->stop();
  send_raw(client.get(), encode(fresh_greeting()));
  send_raw(client.get(), with_length(Bytes(200, std::byte{'x'})));
  testing::internal::CaptureStderr();
  for (const Deadline limit = soon(); !limit.expired();) {
    base::wait_for(listener.fds().at(0), POLLIN, Deadline::after(10ms));
    EXPECT_TRUE(listener.accept_ready().empty());
    pollfd gone{.fd = client.get(), .events = POLLRDHUP, .revents = 0};
    if (::poll(&gone, 1, 0) > 0 && (gone.revents & (POLLRDHUP | POLLHUP)) != 0) break;
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("does munged on this host hang?"));
  daemon_->go_on();
}

// The listener serves others meanwhile, and lets that one in when munged is back.
TEST_F(MungeTest, AMungedThatHangsHoldsUpNobodyElse) {
  Listener listener{{"127.0.0.1"}, 0, std::make_shared<MungeProver>(Munge{daemon_->socket()})};
  const auto prover = std::make_shared<MungeProver>(Munge{daemon_->socket()});
  const EphemeralKey key;
  const base::UniqueFd client = raw(listener.port());
  send_raw(client.get(), encode(greeting_of(key)));
  const Deadline limit = soon();
  const auto serve = [&](const auto& done) {
    while (!done() && !limit.expired()) {
      base::wait_for(listener.fds().at(0), POLLIN, Deadline::after(10ms));
      if (!listener.accept_ready().empty()) return true;
    }
    return false;
  };
  pollfd readable{.fd = client.get(), .events = POLLIN, .revents = 0};
  serve([&] { return ::poll(&readable, 1, 0) > 0; });
  const Greeting theirs = receive_greeting(client.get());
  const Announcement announcement = receive_announcement(client.get());
  const Bytes proof = prover->prove(make_statement(HandshakeSide::connecting, greeting_of(key), theirs, announcement));
  daemon_->stop();
  send_raw(client.get(), with_length(proof));
  const base::UniqueFd second = raw(listener.port());
  send_raw(second.get(), encode(fresh_greeting()));
  readable.fd = second.get();
  const auto begin = std::chrono::steady_clock::now();
  serve([&] { return ::poll(&readable, 1, 0) > 0; });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s) << "the listener waits for munged";
  daemon_->go_on();
  EXPECT_TRUE(serve([] { return false; }));
}

}  // namespace
}  // namespace ddp::launcher::control
