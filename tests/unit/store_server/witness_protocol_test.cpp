// The messages between store and witness are read as they were written, and nothing else is.
#include <ddp/error.hpp>

#include "store_server/store_protocol.hpp"
#include "store_server/witness_protocol.hpp"

namespace ddp::store_server {
namespace {

const Endpoint kEnd{.address = *PeerAddress::parse("10.0.0.7"), .port = 4711};
const Endpoint kV6{.address = *PeerAddress::parse("fe80::1"), .port = 29500};

template <class Message>
Message again(const Message& message) {
  const Bytes bytes = base::encode(message);
  EXPECT_LE(bytes.size(), kMostWitnessBytes);
  return base::decode<Message>(bytes);
}

TEST(WitnessProtocol, MessagesAreReadAsTheyWereWritten) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{3}, kMostAddresses}) {
    const Statement said{
        .host = random_bytes(), .own = kEnd, .addresses = std::vector<PeerAddress>(count, kV6.address)};
    const Statement read = again(said);
    EXPECT_EQ(read.host, said.host);
    EXPECT_EQ(read.own, kEnd);
    EXPECT_EQ(read.addresses, said.addresses);
  }
  for (const std::size_t count : {std::size_t{0}, kMostAddresses + 1}) {
    const Statement said{.addresses = std::vector<PeerAddress>(count, kV6.address)};
    EXPECT_THROW(base::decode<Statement>(base::encode(said)), Error) << count;
  }
  const Welcome welcome = again(Welcome{.role = Role::translated, .seen = kV6});
  EXPECT_EQ(welcome.role, Role::translated);
  EXPECT_EQ(welcome.seen, kV6);
  const Question question = again(Question{.id = 1ULL << 40, .source = kEnd, .destination = kV6});
  EXPECT_EQ(question.id, 1ULL << 40);
  EXPECT_EQ(question.source, kEnd);
  EXPECT_EQ(question.destination, kV6);
  const Answer answer = again(Answer{.id = 7, .owner = {.kind = SocketOwner::Kind::other_user, .uid = 1003}});
  EXPECT_EQ(answer.id, 7U);
  EXPECT_EQ(answer.owner.kind, SocketOwner::Kind::other_user);
  EXPECT_EQ(answer.owner.uid, 1003U);
}

TEST(WitnessProtocol, BeginsLikeNoClient) {
  const Bytes greeting = stream::encode(kWitnessProtocol, stream::Greeting{});
  EXPECT_EQ(static_cast<std::uint8_t>(greeting.front()), kWitnessByte);
  EXPECT_GE(kWitnessByte, kOperations);
}

}  // namespace

// Which witnesses are asked, and when nobody is left to answer.

namespace {

using Descriptors = std::vector<int>;

PeerAddress address(const std::string& text) { return *PeerAddress::parse(text); }

Statement host(std::uint8_t name, const std::vector<std::string>& addresses) {
  Statement statement;
  statement.host[0] = name;
  for (const std::string& text : addresses) statement.addresses.push_back(address(text));
  return statement;
}

TEST(WitnessDirectory, WitnessesAreFoundByEachAddress) {
  WitnessDirectory directory;
  directory.add(5, host(1, {"10.0.0.1", "172.17.0.1", "10.0.0.1"}));
  directory.add(6, host(2, {"10.0.0.2", "172.17.0.1"}));
  EXPECT_EQ(directory.at(address("10.0.0.1")), Descriptors{5});
  EXPECT_EQ(directory.at(address("172.17.0.1")), (Descriptors{5, 6}));
  EXPECT_EQ(directory.at(address("10.0.0.3")), Descriptors{});
  EXPECT_TRUE(directory.has_host(host(1, {})));
  EXPECT_FALSE(directory.has_host(host(3, {})));
  directory.remove(5);
  EXPECT_FALSE(directory.has_host(host(1, {})));
  EXPECT_EQ(directory.at(address("172.17.0.1")), Descriptors{6});
}

TEST(WitnessDirectory, OnlyWhoWasAskedAnswersAndOnce) {
  WitnessDirectory directory;
  directory.asked(100, 9, {5, 6});
  EXPECT_EQ(directory.answered(7, 100), std::nullopt);
  EXPECT_EQ(directory.answered(5, 101), std::nullopt);
  EXPECT_EQ(directory.answered(5, 100), 9);
  EXPECT_FALSE(directory.all_answered(100));
  EXPECT_EQ(directory.answered(5, 100), std::nullopt);
  EXPECT_EQ(directory.answered(6, 100), 9);
  EXPECT_TRUE(directory.all_answered(100));
  directory.asked(102, 9, {5});
  directory.settled(102);
  EXPECT_EQ(directory.answered(5, 102), std::nullopt);
}

TEST(WitnessDirectory, AWitnessThatIsGoneLeavesItsQuestionsToOthers) {
  WitnessDirectory directory;
  directory.asked(100, 9, {5, 6});
  directory.asked(101, 10, {5});
  EXPECT_EQ(directory.remove(5), Descriptors{10});
  EXPECT_EQ(directory.answered(6, 100), 9);
}

}  // namespace

}  // namespace ddp::store_server
