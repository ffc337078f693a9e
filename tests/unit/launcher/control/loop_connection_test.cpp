// A connection in a loop: what arrives is told in order, and its functions may end it.
#include "control/loop_connection.hpp"

#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

control::Message message(int code) { return control::Finish{.exit_status = code}; }
control::Message large() {
  return control::Finish{.exit_status = 0, .message = std::string(std::size_t{4} << 20U, 'x')};
}

class LoopConnectionTest : public ::testing::Test {
 protected:
  explicit LoopConnectionTest(control::ConnectionPair pair = control::make_pair())
      : peer_(std::make_unique<control::Connection>(std::move(pair.second), "the test")),
        own_(std::make_unique<LoopConnection>(
            loop_, control::Connection{std::move(pair.first), "the peer"},
            [this](const control::Message& received) {
              codes_.push_back(std::get<control::Finish>(received).exit_status);
              open_.push_back(own_ && own_->open());
              if (on_message_) on_message_();
            },
            [this](const std::string& why) {
              losses_.push_back(why);
              if (on_lost_) on_lost_();
            })) {}

  void turn() { loop_.run_once(Deadline::after(std::chrono::milliseconds(0))); }

  EventLoop loop_;
  std::unique_ptr<control::Connection> peer_;
  std::unique_ptr<LoopConnection> own_;
  std::vector<int> codes_;
  std::vector<bool> open_;
  std::vector<std::string> losses_;
  std::function<void()> on_message_, on_lost_;
};

TEST_F(LoopConnectionTest, MessagesArriveInOrder) {
  for (const int code : {1, 2, 3}) peer_->send(message(code));
  turn();
  EXPECT_THAT(codes_, ElementsAre(1, 2, 3));
  EXPECT_THAT(open_, ElementsAre(true, true, true));
  EXPECT_THAT(losses_, IsEmpty());
}

TEST_F(LoopConnectionTest, CanBeReadWithoutTheLoop) {
  peer_->send(message(1));
  own_->read();
  EXPECT_THAT(codes_, ElementsAre(1));
}

TEST_F(LoopConnectionTest, SendsWhatTheSocketDoesNotTakeAtOnce) {
  own_->send(large());
  std::vector<control::Message> received;
  for (const Deadline limit = Deadline::after(std::chrono::seconds(60)); received.empty() && !limit.expired();) {
    turn();
    received = peer_->receive();
  }
  EXPECT_THAT(received, ElementsAre(large()));
  // The socket is writable now, which must not keep the loop awake.
  const Deadline limit = Deadline::after(std::chrono::milliseconds(1));
  loop_.run_once(limit);
  EXPECT_TRUE(limit.expired());
}

TEST_F(LoopConnectionTest, LossComesOnceAndAfterTheLastMessages) {
  peer_->send(message(1));
  peer_.reset();
  on_lost_ = [this] { EXPECT_THAT(codes_, ElementsAre(1)); };
  turn();
  turn();
  EXPECT_THAT(open_, ElementsAre(false));
  EXPECT_THAT(losses_, ElementsAre("it was closed"));
  own_->read();  // neither does anything
  own_->send(message(2));
  EXPECT_EQ(losses_.size(), 1U);
}

TEST_F(LoopConnectionTest, NonsenseIsALoss) {
  const control::ConnectionPair pair = control::make_pair();
  const LoopConnection other(
      loop_, control::Connection{base::UniqueFd{::dup(pair.first.get())}, "the peer"}, [](const auto&) {},
      [this](const std::string& why) { losses_.push_back(why); });
  ASSERT_EQ(::write(pair.second.get(), "\xff\xff\xff\xff", 4), 4);
  turn();
  EXPECT_THAT(losses_, ElementsAre(HasSubstr("an invalid message")));
}

TEST_F(LoopConnectionTest, AMessageMayDestroyIt) {
  for (const int code : {1, 2}) peer_->send(message(code));
  peer_.reset();
  on_message_ = [this] { own_.reset(); };
  turn();
  EXPECT_THAT(codes_, ElementsAre(1));
  EXPECT_THAT(losses_, IsEmpty());
}

TEST_F(LoopConnectionTest, AMessageMayCloseIt) {
  for (const int code : {1, 2}) peer_->send(message(code));
  on_message_ = [this] {
    own_->send(message(7));
    own_->close(Deadline::after(std::chrono::seconds(60)));
  };
  turn();
  turn();
  EXPECT_THAT(codes_, ElementsAre(1));
  EXPECT_THAT(losses_, IsEmpty());
  EXPECT_FALSE(own_->open());
  EXPECT_THAT(peer_->receive(), ElementsAre(message(7)));
  EXPECT_FALSE(peer_->open());
}

TEST_F(LoopConnectionTest, LossMayDestroyIt) {
  peer_.reset();
  on_lost_ = [this] { own_.reset(); };
  turn();
  EXPECT_THAT(losses_, ElementsAre("it was closed"));
}

TEST_F(LoopConnectionTest, ADestroyedOneIsNotWatched) {
  peer_->send(message(1));
  own_.reset();
  turn();
  EXPECT_THAT(codes_, IsEmpty());
  EXPECT_THAT(losses_, IsEmpty());
}

}  // namespace
}  // namespace ddp::launcher
