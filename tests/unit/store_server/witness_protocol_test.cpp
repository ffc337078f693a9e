// The messages between store and witness: only the right key, of this connection, in its direction, is believed.
#include "store_server/witness_protocol.hpp"

#include <gtest/gtest.h>

#include <string>

#include "store_server/store_protocol.hpp"
#include "store_server/witness_conversation.hpp"

namespace ddp::store_server {
namespace {

using Step = WitnessConversation::Step;

const StoreKey kKey = StoreKey::make();
const Endpoint kEnd{.address = *PeerAddress::parse("10.0.0.7"), .port = 4711, .interface = 0};
const Endpoint kV6{.address = *PeerAddress::parse("fe80::1"), .port = 29500, .interface = 0};

Statement statement(std::size_t addresses = 1) {
  Statement statement{.host = random_bytes(), .own = kEnd, .addresses = {kEnd.address}};
  while (statement.addresses.size() < addresses) statement.addresses.push_back(kV6.address);
  return statement;
}

TEST(WitnessProtocol, MessagesAreReadAsTheyWereWritten) {
  const WitnessSeal seal{kKey, random_bytes(), random_bytes()};
  EXPECT_TRUE(seal.proves_challenge(seal.challenge()));
  for (const std::size_t count : {std::size_t{1}, std::size_t{3}, kMostAddresses, 2 * kMostAddresses}) {
    const Statement said = statement(count);
    const std::string message = seal.statement(said);
    EXPECT_LE(message.size(), kLongestMessage);
    EXPECT_EQ(message.size(), message_bytes(WitnessMessage::statement, message));
    const auto read = seal.read_statement(message);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->host, said.host);
    EXPECT_EQ(read->own, kEnd);
    EXPECT_EQ(read->addresses.size(), std::min(count, kMostAddresses));
  }
  EXPECT_FALSE(seal.read_statement(seal.statement(Statement{})));  // without an address
  const auto welcome = seal.read_welcome(seal.welcome({.role = Role::translated, .seen = kV6}));
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->role, Role::translated);
  EXPECT_EQ(welcome->seen, kV6);
  const auto question = seal.read_question(seal.question({.id = 1ULL << 40, .source = kEnd, .destination = kV6}));
  ASSERT_TRUE(question);
  EXPECT_EQ(question->id, 1ULL << 40);
  EXPECT_EQ(question->source, kEnd);
  EXPECT_EQ(question->destination, kV6);
  const auto answer =
      seal.read_answer(seal.answer({.id = 7, .owner = {.kind = SocketOwner::Kind::other_user, .uid = 1003}}));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->id, 7U);
  EXPECT_EQ(answer->owner.kind, SocketOwner::Kind::other_user);
  EXPECT_EQ(answer->owner.uid, 1003U);
}

TEST(WitnessProtocol, EveryBitCounts) {
  const WitnessSeal seal{kKey, random_bytes(), random_bytes()};
  const std::string message = seal.answer({.id = 7, .owner = {.kind = SocketOwner::Kind::ours, .uid = 1000}});
  for (std::size_t bit = 0; bit < 8 * message.size(); ++bit) {
    std::string bytes = message;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(seal.read_answer(bytes)) << bit;
  }
  EXPECT_FALSE(seal.read_answer(message.substr(1)));
  EXPECT_FALSE(seal.read_answer(message + "x"));
  EXPECT_FALSE(seal.read_answer({}));
}

TEST(WitnessProtocol, RecordedAndReflectedMessagesAreNotBelieved) {
  const Nonce witness = random_bytes();
  const Nonce store = random_bytes();
  const WitnessSeal seal{kKey, witness, store};
  for (const WitnessSeal& other : {WitnessSeal{kKey, witness, random_bytes()}, WitnessSeal{kKey, random_bytes(), store},
                                   WitnessSeal{kKey, store, witness}, WitnessSeal{StoreKey::make(), witness, store}}) {
    EXPECT_FALSE(other.read_statement(seal.statement(statement())));
    EXPECT_FALSE(other.proves_challenge(seal.challenge()));
    EXPECT_FALSE(other.read_answer(seal.answer({})));
  }
}

TEST(WitnessConversation, BeginsLikeNoClientAndTakesAnyPieces) {
  const Nonce nonce = random_bytes();
  const std::string hello = hello_message(nonce);
  EXPECT_GE(static_cast<std::uint8_t>(hello[0]), kOperations);
  for (std::size_t cut = 1; cut < hello.size(); ++cut) {
    WitnessConversation conversation;
    EXPECT_EQ(conversation.feed(hello.substr(0, cut), kKey), Step::incomplete);
    EXPECT_EQ(conversation.feed(hello.substr(cut), kKey), Step::greeted);
    const WitnessSeal seal{kKey, nonce, challenge_nonce(conversation.seal().challenge())};
    const std::string stated = seal.statement(statement(cut));
    for (std::size_t at = 0; at + 1 < stated.size(); ++at) {
      ASSERT_GE(conversation.missing_bytes(), 1U);
      ASSERT_EQ(conversation.feed(stated.substr(at, 1), kKey), Step::incomplete);
    }
    EXPECT_EQ(conversation.missing_bytes(), 1U);
    EXPECT_EQ(conversation.feed(stated.substr(stated.size() - 1), kKey), Step::stated);
    EXPECT_EQ(conversation.feed(seal.answer({.id = 3}), kKey), Step::answered);
    EXPECT_EQ(conversation.answer().id, 3U);
  }
}

TEST(WitnessConversation, WhoDoesNotKnowTheKeyIsNotBelieved) {
  const Nonce nonce = random_bytes();
  std::string other_version = hello_message(nonce);
  other_version[1] = 1;
  EXPECT_EQ(WitnessConversation{}.feed(other_version.substr(0, 2), kKey), Step::broken);
  WitnessConversation conversation;
  ASSERT_EQ(conversation.feed(hello_message(nonce), kKey), Step::greeted);
  const WitnessSeal wrong{StoreKey::make(), nonce, challenge_nonce(conversation.seal().challenge())};
  const std::string stated = wrong.statement(statement());
  conversation.feed(stated.substr(0, conversation.missing_bytes()), kKey);
  EXPECT_EQ(conversation.feed(stated.substr(stated.size() - conversation.missing_bytes()), kKey), Step::broken);
}

}  // namespace
}  // namespace ddp::store_server
