// Every operation's answer, and who is woken when. The expected bytes are those of torch's libuv server, except where a
// test says otherwise.
#include "store_server/key_space.hpp"

#include <ddp/error.hpp>

#include "support/store_requests.hpp"

namespace ddp::store_server {
namespace {

namespace request = test::store_request;
using request::integer;
using request::kStop;
using request::text;

const std::string kReady("\0", 1);
const std::string kNotReady("\1", 1);
const std::string kCanceled("\1", 1);

class KeySpaceTest : public testing::Test, private Outboxes {
 protected:
  /// Sends @p bytes as @p client. @return what the client has got since it was last looked at.
  std::string ask(ClientId client, const std::string& bytes) {
    RequestParser parser;
    parser.feed(request::validate(), [](const Request&) {});
    parser.feed(bytes, [&](const Request& one) { keys_.apply(client, one, *this); });
    return answers(client);
  }
  std::string answers(ClientId client) { return std::exchange(boxes_[client], {}); }
  void forget(ClientId client) { keys_.forget(client, *this); }
  static std::string number(std::int64_t value) { return integer(value); }

  KeySpace keys_;

 private:
  std::string& outbox(ClientId client) override { return boxes_[client]; }
  std::map<ClientId, std::string> boxes_;
};

TEST_F(KeySpaceTest, ValuesAreSetReadAndReplaced) {
  EXPECT_EQ(ask(1, request::set("k", "one")), "");
  EXPECT_EQ(ask(2, request::get("k")), text("one"));
  ask(2, request::set("k", std::string("\0two", 4)));
  EXPECT_EQ(ask(1, request::get("k")), text(std::string("\0two", 4)));
  EXPECT_EQ(ask(1, request::get("absent")), text(""));
  EXPECT_EQ(ask(1, request::get_num_keys()), number(1));
}

TEST_F(KeySpaceTest, PingIsEchoed) { EXPECT_EQ(ask(1, request::ping(0xdeadbeef)), integer(std::uint32_t{0xdeadbeef})); }

TEST_F(KeySpaceTest, CompareSet) {
  EXPECT_EQ(ask(1, request::compare_set("k", "expected", "v")), text("expected"));
  EXPECT_EQ(ask(1, request::check({"k"})), kNotReady);
  EXPECT_EQ(ask(1, request::compare_set("k", "", "v")), text("v"));
  EXPECT_EQ(ask(1, request::compare_set("k", "w", "x")), text("v"));
  EXPECT_EQ(ask(1, request::compare_set("k", "", "x")), text("v"));
  EXPECT_EQ(ask(1, request::compare_set("k", "v", "x")), text("x"));
  EXPECT_EQ(ask(1, request::get("k")), text("x"));
}

TEST_F(KeySpaceTest, CountersAreText) {
  EXPECT_EQ(ask(1, request::add("n", 5)), number(5));
  EXPECT_EQ(ask(2, request::add("n", -12)), number(-7));
  EXPECT_EQ(ask(1, request::get("n")), text("-7"));
  ask(1, request::set("n", " +12abc"));
  EXPECT_EQ(ask(1, request::add("n", 1)), number(13));
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  ask(1, request::set("n", std::to_string(kMost)));
  EXPECT_EQ(ask(1, request::add("n", 1)), number(std::numeric_limits<std::int64_t>::min()));
}

TEST_F(KeySpaceTest, WhatIsNoNumberIsRefusedAndKept) {
  for (const std::string value : {"", "abc", "-", " ", "9223372036854775808", "-9223372036854775809", "\xff"}) {
    ask(1, request::set("n", value));
    EXPECT_THROW(ask(1, request::add("n", 1)), Error) << value;
    EXPECT_THROW(ask(1, request::barrier("n", 1)), Error) << value;
    EXPECT_EQ(ask(2, request::get("n")), text(value));
  }
}

TEST_F(KeySpaceTest, AppendCheckDeleteAndList) {
  ask(1, request::append("k", "ab"));
  ask(1, request::append("k", "cd"));
  EXPECT_EQ(ask(1, request::get("k")), text("abcd"));
  EXPECT_EQ(ask(1, request::check({"k"})), kReady);
  EXPECT_EQ(ask(1, request::check({"k", "l"})), kNotReady);
  EXPECT_EQ(ask(1, request::check({})), kReady);
  EXPECT_EQ(ask(1, request::list_keys()), number(1) + text("k"));
  EXPECT_EQ(ask(1, request::delete_key("k")), number(1));
  EXPECT_EQ(ask(1, request::delete_key("k")), number(0));
  EXPECT_EQ(ask(1, request::list_keys()), number(0));
}

TEST_F(KeySpaceTest, ManyAtOnce) {
  EXPECT_EQ(ask(1, request::multi_set({"a", "1", "b", "2", "a", "3"})), "");
  EXPECT_EQ(ask(1, request::multi_get({"a", "absent", "b"})), text("3") + text("") + text("2"));
  EXPECT_EQ(ask(1, request::multi_get({})), "");
}

TEST_F(KeySpaceTest, AnAnswerBeyondTheLimitIsRefusedBeforeItIsBuilt) {
  ask(1, request::set("k", std::string(kLargestValueBytes, 'v')));
  EXPECT_THROW(ask(1, request::multi_get(std::vector<std::string>(kMostKeys, "k"))), Error);
  EXPECT_EQ(answers(1), "");
}

TEST_F(KeySpaceTest, WaitIsAnsweredWhenAllKeysAreThere) {
  ask(9, request::set("there", "1"));
  EXPECT_EQ(ask(1, request::wait({"there"})), kStop);
  EXPECT_EQ(ask(1, request::wait({})), kStop);
  EXPECT_EQ(ask(1, request::wait({"there", "a", "b", "a"})), "");
  EXPECT_EQ(keys_.waiting_clients(), 1U);
  ask(9, request::set("a", "1"));
  EXPECT_EQ(answers(1), "");
  ask(9, request::delete_key("a"));  // it has come; that it has gone again does not matter
  ask(9, request::set("b", "1"));
  EXPECT_EQ(answers(1), kStop);
  EXPECT_EQ(keys_.waiting_clients(), 0U);
  EXPECT_EQ(keys_.awaited_keys(), 0U);
  ask(9, request::set("b", "2"));
  EXPECT_EQ(answers(1), "");
}

TEST_F(KeySpaceTest, EveryWayToMakeAKeyWakesAllWhoWait) {
  const std::vector<std::string> ways{request::set("k", "1"),         request::add("k", 1),
                                      request::append("k", "1"),      request::compare_set("k", "", "1"),
                                      request::multi_set({"k", "1"}), request::barrier("k", 1)};
  for (const std::string& way : ways) {
    for (ClientId client = 1; client <= 3; ++client) EXPECT_EQ(ask(client, request::wait({"k"})), "");
    ask(9, way);
    for (ClientId client = 1; client <= 3; ++client) EXPECT_EQ(answers(client), kStop);
    ask(9, request::delete_key("k"));
  }
}

TEST_F(KeySpaceTest, AClientWakesItself) {
  ask(1, request::wait({"k"}));
  EXPECT_EQ(ask(1, request::set("k", "1")), kStop);
}

TEST_F(KeySpaceTest, ACompareSetThatSetsNothingWakesAsLibuvDoes) {
  ask(1, request::wait({"k"}));
  ask(9, request::compare_set("k", "expected", "v"));
  EXPECT_EQ(answers(1), kStop);
}

TEST_F(KeySpaceTest, ACanceledWaitIsOver) {
  ask(1, request::wait({"a", "b", "a"}));
  ask(2, request::wait({"a"}));
  ask(9, request::set("b", "1"));
  EXPECT_EQ(ask(1, request::cancel_wait()), kCanceled);
  EXPECT_EQ(ask(1, request::cancel_wait()), kCanceled);
  ask(9, request::set("a", "1"));
  EXPECT_EQ(answers(1), "");
  EXPECT_EQ(answers(2), kStop);
  EXPECT_EQ(keys_.awaited_keys(), 0U);
}

TEST_F(KeySpaceTest, ACancelThatComesTooLateIsAnsweredToo) {
  ask(1, request::wait({"a"}));
  ask(9, request::set("a", "1"));
  EXPECT_EQ(ask(1, request::cancel_wait()), kStop + kCanceled);
}

TEST_F(KeySpaceTest, ASecondWaitTakesThePlaceOfTheFirst) {
  ask(1, request::wait({"a"}));
  ask(1, request::wait({"b"}));
  ask(9, request::set("a", "1"));
  EXPECT_EQ(answers(1), "");
  ask(9, request::set("b", "1"));
  EXPECT_EQ(answers(1), kStop);
}

TEST_F(KeySpaceTest, PollingForAnAbsentKeyLeavesNothingBehind) {
  for (int i = 0; i < 1000; ++i) {
    ask(1, request::wait({"a", std::to_string(i)}));
    ask(1, request::cancel_wait());
  }
  EXPECT_EQ(keys_.awaited_keys(), 0U);
}

TEST_F(KeySpaceTest, WhoeverIsGoneWaitsNoMore) {
  ask(1, request::wait({"a", "b"}));
  ask(2, request::barrier("bar", 2));
  forget(1);
  forget(2);
  forget(3);
  EXPECT_EQ(keys_.waiting_clients(), 0U);
  EXPECT_EQ(keys_.awaited_keys(), 0U);
  ask(9, request::set("a", "1"));
  ask(9, request::set("b", "1"));
  EXPECT_EQ(answers(1), "");
}

TEST_F(KeySpaceTest, QueuesAreApartFromValues) {
  EXPECT_EQ(ask(1, request::queue_len("q")), number(0));
  EXPECT_EQ(ask(1, request::queue_pop("q")), number(0));
  EXPECT_EQ(ask(1, request::queue_push("q", "one") + request::queue_push("q", "two")), "");
  EXPECT_EQ(ask(1, request::queue_len("q")), number(2));
  EXPECT_EQ(ask(1, request::get_num_keys()), number(0));
  EXPECT_EQ(ask(1, request::list_keys()), number(0));
  EXPECT_EQ(ask(1, request::get("q")), text(""));
  EXPECT_EQ(ask(1, request::delete_key("q")), number(0));
  EXPECT_EQ(ask(1, request::check({"q"})), kReady);
  EXPECT_EQ(ask(1, request::wait({"q"})), kStop);
  EXPECT_EQ(ask(1, request::queue_pop("q")), number(2) + text("one"));
  EXPECT_EQ(ask(1, request::queue_pop("q")), number(1) + text("two"));
  EXPECT_EQ(ask(1, request::check({"q"})), kNotReady);
}

TEST_F(KeySpaceTest, EachItemWakesExactlyOneInTheOrderOfTheirWaits) {
  for (ClientId client = 1; client <= 3; ++client) ask(client, request::wait({"q"}));
  for (ClientId woken = 1; woken <= 3; ++woken) {
    ask(9, request::queue_push("q", std::to_string(woken)));
    for (ClientId client = 1; client <= 3; ++client) EXPECT_EQ(answers(client), client == woken ? kStop : "");
  }
  ask(9, request::queue_push("q", "4"));
  EXPECT_EQ(ask(3, request::queue_pop("q")), number(4) + text("1"));
  EXPECT_EQ(ask(1, request::queue_pop("q")), number(3) + text("2"));
}

TEST_F(KeySpaceTest, AValueWakesAllWhoWaitForAnItem) {
  ask(1, request::wait({"q"}));
  ask(2, request::wait({"q"}));
  ask(9, request::set("q", "1"));
  EXPECT_EQ(answers(1), kStop);
  EXPECT_EQ(answers(2), kStop);
}

// Not as libuv's server, where the item is left lying while a client waits for it.
TEST_F(KeySpaceTest, AnItemWhoseClientGaveUpIsOfferedToTheNext) {
  for (ClientId client = 1; client <= 4; ++client) ask(client, request::wait({"q"}));
  ask(9, request::queue_push("q", "item"));
  EXPECT_EQ(ask(1, request::cancel_wait()), kStop + kCanceled);
  EXPECT_EQ(answers(2), kStop);
  forget(2);
  EXPECT_EQ(answers(3), kStop);
  EXPECT_EQ(ask(3, request::queue_pop("q")), number(1) + text("item"));
  EXPECT_EQ(ask(3, request::ping(1)), integer(std::uint32_t{1}));
  EXPECT_EQ(answers(4), "");
}

// Not as libuv's server, where this wait never ends.
TEST_F(KeySpaceTest, AWaitForAFilledQueueAndAnAbsentKeyEndsWithTheKey) {
  ask(9, request::queue_push("q", "item"));
  ask(1, request::wait({"q", "k"}));
  ask(9, request::set("k", "1"));
  EXPECT_EQ(answers(1), kStop);
}

TEST_F(KeySpaceTest, AnItemGoesPastThoseWhoWaitForMoreThanIt) {
  ask(1, request::wait({"q", "k"}));
  ask(2, request::wait({"q"}));
  ask(9, request::queue_push("q", "item"));
  EXPECT_EQ(answers(1), "");
  EXPECT_EQ(answers(2), kStop);
  ask(9, request::set("k", "1"));
  EXPECT_EQ(answers(1), kStop);
}

TEST_F(KeySpaceTest, ABarrierLetsAllGoWithTheLast) {
  EXPECT_EQ(ask(1, request::barrier("b", 3)), "");
  EXPECT_EQ(ask(2, request::barrier("b", 3)), "");
  EXPECT_EQ(ask(3, request::barrier("b", 3)), kStop);
  EXPECT_EQ(answers(1), kStop);
  EXPECT_EQ(answers(2), kStop);
  EXPECT_EQ(ask(9, request::get("b")), text("3"));
  EXPECT_EQ(ask(4, request::barrier("b", 3)), kStop);
  EXPECT_EQ(ask(5, request::barrier("none", 0)), kStop);
  EXPECT_EQ(ask(5, request::barrier("negative", -1)), kStop);
}

TEST_F(KeySpaceTest, WhoeverGivesUpABarrierStaysCounted) {
  ask(1, request::barrier("b", 2));
  EXPECT_EQ(ask(1, request::cancel_wait()), kCanceled);
  EXPECT_EQ(ask(2, request::barrier("b", 2)), kStop);
  EXPECT_EQ(answers(1), "");
}

TEST_F(KeySpaceTest, OneOfManyWaitingClientsLeavesAtATime) {
  constexpr ClientId kClients = 5000;
  for (ClientId client = 0; client < kClients; ++client) ask(client, request::wait({"k", "l"}));
  for (ClientId client = 0; client < kClients; client += 2) forget(client);
  EXPECT_EQ(keys_.waiting_clients(), std::size_t{kClients / 2});
  ask(-1, request::multi_set({"k", "1", "l", "1"}));
  for (ClientId client = 0; client < kClients; ++client) EXPECT_EQ(answers(client), client % 2 == 0 ? "" : kStop);
}

}  // namespace
}  // namespace ddp::store_server
