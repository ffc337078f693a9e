// Messages arrive whole and in order, both ways at once; a misbehaving peer ends at most its own connection.
#include <malloc.h>
#include <poll.h>
#include <sys/socket.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "control/connection.hpp"

namespace ddp::launcher::control {
namespace {

Deadline soon() { return Deadline::after(60s); }

Bytes payload_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span{text});
  return {bytes.begin(), bytes.end()};
}

struct Ends {
  Connection one, other;
};

Ends unix_ends() {
  ConnectionPair pair = make_pair();
  return {Connection{std::move(pair.first), "one"}, Connection{std::move(pair.second), "other"}};
}

Ends tcp_ends() {
  const base::UniqueFd listening = base::listen_tcp("127.0.0.1");
  base::UniqueFd one = base::connect_tcp("127.0.0.1", base::local_port(listening.get()), soon());
  EXPECT_TRUE(base::wait_for(listening.get(), POLLIN, soon()));
  base::UniqueFd other{::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  return {Connection{std::move(one), "one"}, Connection{std::move(other), "other"}};
}

/// Receives until @p count messages have arrived or the connection ends. Flushes @p sender meanwhile.
std::vector<Message> receive(Connection& connection, std::size_t count, Connection* sender = nullptr) {
  std::vector<Message> all;
  const Deadline deadline = soon();
  while (all.size() < count && connection.open() && !deadline.expired()) {
    if (sender != nullptr) sender->flush();
    base::wait_for(connection.fd(), POLLIN, deadline);
    for (Message& message : connection.receive()) all.push_back(std::move(message));
  }
  return all;
}

/// Sends all that waits.
void flush_all(Connection& connection) {
  while (connection.wants_to_write() && base::wait_for(connection.fd(), POLLOUT, soon())) connection.flush();
}

void send_bytes(const Connection& connection, const Bytes& bytes) {
  base::send_all(connection.fd(), bytes, soon(), "sending in a test");
}

Fence large(std::size_t size, unsigned seed) {
  Fence fence;
  fence.data.resize(size);
  for (std::size_t i = 0; i < size; ++i) fence.data[i] = static_cast<std::byte>(i * 31 + i / 251 + seed);
  return fence;
}

struct Connections : testing::TestWithParam<Ends (*)()> {
  Ends ends_ = GetParam()();
  Connection& one_ = ends_.one;
  Connection& other_ = ends_.other;
};

INSTANTIATE_TEST_SUITE_P(Over, Connections, testing::Values(&unix_ends, &tcp_ends),
                         [](const auto& made) { return made.index == 0 ? "UnixSockets" : "Tcp"; });

TEST_P(Connections, MessagesArriveWholeAndInOrder) {
  for (int i = 0; i < 1000; ++i) one_.send(ModexRequest{.id = i});
  const auto received = receive(other_, 1000, &one_);
  ASSERT_EQ(received.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(std::get<ModexRequest>(received[static_cast<std::size_t>(i)]).id, i);
  EXPECT_TRUE(other_.receive().empty());
  EXPECT_TRUE(other_.open());
}

TEST_P(Connections, LargeMessagesGoBothWaysAtOnce) {
  const Fence there = large(24U << 20U, 1), back = large(17U << 20U, 2);
  one_.send(there);
  other_.send(back);
  EXPECT_TRUE(one_.wants_to_write());  // no socket takes that much
  EXPECT_TRUE(other_.wants_to_write());
  one_.send(ModexRequest{.id = 1});
  other_.send(ModexRequest{.id = 2});
  std::vector<Message> at_one, at_other;
  const Deadline deadline = soon();
  while ((at_one.size() < 2 || at_other.size() < 2) && !deadline.expired()) {
    one_.flush();
    other_.flush();
    for (Message& message : one_.receive()) at_one.push_back(std::move(message));
    for (Message& message : other_.receive()) at_other.push_back(std::move(message));
  }
  ASSERT_EQ(at_one.size(), 2U);
  EXPECT_TRUE(at_one[0] == Message{back});
  EXPECT_TRUE(at_one[1] == Message{ModexRequest{.id = 2}});
  ASSERT_EQ(at_other.size(), 2U);
  EXPECT_TRUE(at_other[0] == Message{there});
  EXPECT_TRUE(at_other[1] == Message{ModexRequest{.id = 1}});
}

TEST_P(Connections, MessagesAroundTheSizeOfAPieceArriveWhole) {
  const std::size_t head = encode(Fence{}).size();
  std::vector<Message> sent;
  for (const std::size_t pieces : {1, 2, 3}) {
    for (const std::size_t more : {0, 1, 2}) {
      sent.emplace_back(large(pieces * kPieceBytes - 1 + more - head, 4));
      sent.emplace_back(ModexRequest{.id = static_cast<std::int64_t>(more)});
    }
  }
  std::thread sender([&] {
    for (const Message& message : sent) {
      one_.send(message);
      flush_all(one_);
      one_.beat();
    }
  });
  const auto received = receive(other_, sent.size());
  sender.join();
  EXPECT_TRUE(received == sent);
  EXPECT_TRUE(other_.open());
}

#ifndef DDP_SANITIZED
/// A fence of many nodes: data waiting for slow sockets exists once, sealed or not.
TEST(ConnectionMemory, ALongMessageForManyConnectionsIsThereOnce) {
  constexpr std::size_t kNodes = 60;
  constexpr std::size_t kFenceBytes = 4U << 20U;
  const auto in_use = [] {
    const struct mallinfo2 info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const stream::EphemeralKey key, theirs;
  std::vector<Connection> ends;
  std::vector<base::UniqueFd> others;
  for (std::size_t node = 0; node < kNodes; ++node) {
    ConnectionPair pair = make_pair();
    ends.emplace_back(std::move(pair.first), "a node",
                      key.agree(stream::HandshakeSide::accepting, theirs.public_key()));
    others.push_back(std::move(pair.second));
  }
  const std::size_t before = in_use();
  {
    const Encoded once = encode_once(large(kFenceBytes, 1));
    for (Connection& end : ends) end.send(once);
  }
  for (const Connection& end : ends) EXPECT_TRUE(end.wants_to_write());
  const std::size_t grown = in_use() - before;
  RecordProperty("grown_bytes", std::to_string(grown));
  EXPECT_LT(grown, kFenceBytes + kNodes * 3 * kPieceBytes) << "a copy for each would be " << kNodes * kFenceBytes;
}
#endif

TEST_P(Connections, OneTurnDoesNotTakeAllThatComes) {
  const Fence fence = large(16U << 20U, 1);
  one_.send(fence);
  std::thread sender([&] { flush_all(one_); });
  int turns = 0;
  std::vector<Message> received;
  while (received.empty() && base::wait_for(other_.fd(), POLLIN, soon())) {
    received = other_.receive();
    ++turns;
  }
  sender.join();
  ASSERT_EQ(received.size(), 1U);
  EXPECT_TRUE(received[0] == Message{fence});
  EXPECT_GE(turns, 16);  // a megabyte each at most
}

TEST_P(Connections, ASignOfLifeIsHeardAndIsNoMessage) {
  const auto before = other_.last_heard();
  one_.beat();
  ASSERT_TRUE(base::wait_for(other_.fd(), POLLIN, soon()));
  EXPECT_TRUE(other_.receive().empty());
  EXPECT_TRUE(other_.open());
  EXPECT_GT(other_.last_heard(), before);
  const auto heard = other_.last_heard();
  EXPECT_TRUE(other_.receive().empty());
  EXPECT_EQ(other_.last_heard(), heard);
  one_.send(ModexRequest{.id = 1});
  EXPECT_EQ(receive(other_, 1).size(), 1U);
}

TEST_P(Connections, ASlowReaderBlocksNobody) {
  const Fence fence = large(1U << 20U, 3);
  for (int i = 0; i < 20; ++i) one_.send(fence);
  EXPECT_TRUE(one_.wants_to_write());
  one_.flush();
  EXPECT_TRUE(one_.open());
  std::thread writer([&] { flush_all(one_); });
  std::size_t count = 0;
  while (count < 20 && other_.open() && base::wait_for(other_.fd(), POLLIN, soon())) {
    count += other_.receive().size();
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(count, 20U);
  writer.join();
}

TEST_P(Connections, WhatWasSentBeforeTheEndIsReceived) {
  one_.send(Finish{.exit_status = 3, .message = "bye"});
  one_.close(soon());
  EXPECT_FALSE(one_.open());
  EXPECT_EQ(one_.fd(), -1);
  const auto received = receive(other_, 2);
  ASSERT_EQ(received.size(), 1U);
  EXPECT_FALSE(other_.open());
  EXPECT_EQ(other_.lost_because(), "it was closed");
  EXPECT_GE(other_.fd(), 0);  // so that an event loop can forget it
  EXPECT_TRUE(other_.receive().empty());
  other_.send(ModexRequest{});  // goes nowhere
  EXPECT_FALSE(other_.wants_to_write());
}

// Without care, bytes that the closing side has not read make the kernel discard what it sent.
TEST_P(Connections, ClosingWithUnreadMessagesDoesNotTakeBackWhatWasSent) {
  for (int i = 0; i < 10; ++i) other_.send(ModexRequest{.id = i});
  std::this_thread::sleep_for(10ms);
  one_.send(large(3U << 20U, 1));
  std::vector<Message> received;
  std::thread reader([&] { received = receive(other_, 2); });
  one_.send(Finish{.exit_status = 3, .message = "bye"});
  one_.close(soon());
  reader.join();
  ASSERT_EQ(received.size(), 2U);
  EXPECT_TRUE(received[1] == (Message{Finish{.exit_status = 3, .message = "bye"}}));
}

TEST_P(Connections, ClosingStopsAtTheDeadlineWhenNobodyReads) {
  one_.send(large(32U << 20U, 1));
  const auto begin = std::chrono::steady_clock::now();
  one_.close(Deadline::after(50ms));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
  EXPECT_FALSE(one_.open());
  EXPECT_TRUE(receive(other_, 1).empty());
  EXPECT_THAT(other_.lost_because(), HasSubstr("in the middle of a message"));
}

TEST_P(Connections, ClosingDoesNotWaitForAPeerThatIsGone) {
  one_.send(large(32U << 20U, 1));
  other_.close(Deadline::after(0s));
  const auto begin = std::chrono::steady_clock::now();
  one_.close(soon());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

TEST_P(Connections, APeerThatEndsInMidMessageIsLost) {
  Bytes half =
      stream::frame(encode(RankAborted{.epoch = 1, .local_rank = 2, .call = {.status = 3, .message = "gone"}}));
  half.resize(half.size() - 1);
  one_.send(ModexRequest{.id = 5});
  send_bytes(one_, half);
  one_.close(soon());
  EXPECT_EQ(receive(other_, 2).size(), 1U);
  EXPECT_FALSE(other_.open());
  EXPECT_EQ(other_.lost_because(), "it was closed, in the middle of a message");
}

TEST_P(Connections, APeersLastWordsAreReadAfterSendingToItFailed) {
  other_.send(Finish{.exit_status = 9, .message = "last words"});
  other_.close(soon());
  for (int i = 0; i < 200 && one_.open(); ++i) {
    one_.send(ModexRequest{.id = i});  // lost, later an error; SIGPIPE would end this program
    std::this_thread::sleep_for(100us);
  }
  EXPECT_TRUE(one_.open());  // a lost connection shows at receive()
  const auto received = receive(one_, 2);
  ASSERT_EQ(received.size(), 1U);
  EXPECT_TRUE(received[0] == (Message{Finish{.exit_status = 9, .message = "last words"}}));
  EXPECT_FALSE(one_.open());
  EXPECT_FALSE(one_.lost_because().empty());
  EXPECT_FALSE(one_.wants_to_write());
}

TEST_P(Connections, AMessageThatCannotBeUnderstoodEndsTheConnection) {
  one_.send(ModexRequest{.id = 1});
  send_bytes(one_, stream::frame(payload_of("GET / HTTP/1.1")));
  one_.send(ModexRequest{.id = 2});
  const auto received = receive(other_, 3);
  ASSERT_EQ(received.size(), 1U);  // later data is not trusted
  EXPECT_FALSE(other_.open());
  EXPECT_THAT(other_.lost_because(), HasSubstr("an invalid message"));
  EXPECT_TRUE(receive(one_, 1).empty());  // and the peer learns without waiting for its owner
  EXPECT_FALSE(one_.open());
}

TEST_P(Connections, AHostileLengthEndsTheConnection) {
  send_bytes(one_, payload_of("\xFF\xFF\xFF\xFF"));
  EXPECT_TRUE(receive(other_, 1).empty());
  EXPECT_FALSE(other_.open());
  EXPECT_THAT(other_.lost_because(), AllOf(HasSubstr("4294967295"), HasSubstr("268435456")));
}

TEST_P(Connections, AFieldOutOfRangeIsNamedInTheReason) {
  one_.send(AttemptPrepared{.epoch = -1, .store_port = 0});
  EXPECT_TRUE(receive(other_, 1).empty());
  EXPECT_THAT(other_.lost_because(), HasSubstr("AttemptPrepared: 'epoch' is -1"));
}

TEST_P(Connections, TheyCanBeMovedInTheMiddleOfEverything) {
  const Fence fence = large(8U << 20U, 5);
  one_.send(fence);
  base::wait_for(other_.fd(), POLLIN, soon());
  EXPECT_TRUE(other_.receive().empty());  // a part
  std::vector<Connection> moved;
  moved.push_back(std::move(one_));
  moved.push_back(std::move(other_));
  moved.reserve(100);
  EXPECT_TRUE(moved[0].wants_to_write());
  std::thread writer([&] { flush_all(moved[0]); });
  const auto received = receive(moved[1], 1);
  writer.join();
  ASSERT_EQ(received.size(), 1U);
  EXPECT_TRUE(received[0] == Message{fence});
}

TEST(Connection, ASocketThatIsNoneIsRefused) { EXPECT_THROW((Connection{base::UniqueFd{}, "nobody"}), Error); }

}  // namespace

}  // namespace ddp::launcher::control

namespace ddp::launcher {

// A connection in a loop: arrivals are reported in order, and its callbacks may end it.

namespace {

control::Message message(int code) { return control::Finish{.exit_status = code}; }
control::Message large() {
  return control::Finish{.exit_status = 0, .message = std::string(std::size_t{4} << 20U, 'x')};
}

struct LoopConnectionTest : ::testing::Test {
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

  stream::EventLoop loop_;
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
  // The socket is writable, which must not keep the loop awake.
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
  own_->read();  // neither has an effect
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
