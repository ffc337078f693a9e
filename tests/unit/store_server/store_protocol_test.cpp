// The parser gives the same requests however the bytes are cut, refuses what no client may send, and holds no memory
// for bytes that have only been announced.
#include "store_server/store_protocol.hpp"

#include <ddp/error.hpp>

#include "support/store_requests.hpp"

namespace ddp::store_server {
namespace {

namespace request = test::store_request;

struct Seen {
  Operation operation;
  std::vector<std::string> texts;
  std::int64_t number;
  std::uint32_t word;
  bool operator==(const Seen&) const = default;
};

/// Feeds @p bytes in pieces of @p piece.
std::vector<Seen> parse(RequestParser& parser, const std::string& bytes, std::size_t piece) {
  std::vector<Seen> seen;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const std::string part = bytes.substr(at, piece);  // a buffer of its own, so that a read past its end is found
    parser.feed(part, [&](const Request& one) {
      seen.push_back({one.operation, {one.texts.begin(), one.texts.end()}, one.number, one.word});
    });
  }
  return seen;
}

ErrorCode refusal(const std::string& bytes, std::size_t piece = 1U << 20) {
  RequestParser parser;
  try {
    parse(parser, bytes, piece);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::system;
}

std::string all_requests() {
  return request::validate() + request::set("k", "v") + request::compare_set("k", "e", "d") + request::get("k") +
         request::add("k", -5) + request::check({"a", "b"}) + request::wait({"c"}) + request::get_num_keys() +
         request::delete_key("k") + request::append("k", std::string("\0x", 2)) + request::multi_get({"a", ""}) +
         request::multi_set({"a", "1", "b", "2"}) + request::cancel_wait() + request::ping(77) +
         request::queue_push("q", "i") + request::queue_pop("q") + request::queue_len("q") + request::list_keys() +
         request::barrier("b", 9);
}

std::vector<Seen> all_seen() {
  using enum Operation;
  return {{validate, {}, 0, kMagic},
          {set, {"k", "v"}, 0, 0},
          {compare_set, {"k", "e", "d"}, 0, 0},
          {get, {"k"}, 0, 0},
          {add, {"k"}, -5, 0},
          {check, {"a", "b"}, 0, 0},
          {wait, {"c"}, 0, 0},
          {get_num_keys, {}, 0, 0},
          {delete_key, {"k"}, 0, 0},
          {append, {"k", std::string("\0x", 2)}, 0, 0},
          {multi_get, {"a", ""}, 0, 0},
          {multi_set, {"a", "1", "b", "2"}, 0, 0},
          {cancel_wait, {}, 0, 0},
          {ping, {}, 0, 77},
          {queue_push, {"q", "i"}, 0, 0},
          {queue_pop, {"q"}, 0, 0},
          {queue_len, {"q"}, 0, 0},
          {list_keys, {}, 0, 0},
          {barrier, {"b"}, 9, 0}};
}

class Pieces : public testing::TestWithParam<std::size_t> {};

TEST_P(Pieces, EveryOperationIsRead) {
  RequestParser parser;
  EXPECT_FALSE(parser.validated());
  EXPECT_EQ(parse(parser, all_requests(), GetParam()), all_seen());
  EXPECT_TRUE(parser.validated());
}

INSTANTIATE_TEST_SUITE_P(StoreProtocol, Pieces, testing::Values(1, 2, 3, 5, 7, 8, 13, 64, 1 << 20));

TEST(StoreProtocol, NoBeginningIsTakenForAWhole) {
  const std::string bytes = all_requests();
  std::size_t complete = 0;
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    RequestParser parser;
    const auto seen = parse(parser, bytes.substr(0, size), 1U << 20);
    EXPECT_GE(seen.size(), complete);
    EXPECT_LE(seen.size(), complete + 1);
    complete = seen.size();
  }
  EXPECT_EQ(complete, kOperations);
}

TEST(StoreProtocol, CountsMayBeZero) {
  RequestParser parser;
  const auto seen =
      parse(parser, request::validate() + request::check({}) + request::multi_set({}) + request::ping(1), 4);
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_TRUE(seen[1].texts.empty());
  EXPECT_EQ(seen[3].word, 1U);
}

TEST(StoreProtocol, TheFirstRequestMustBeTheRightValidate) {
  for (int code = 1; code < 256; ++code) EXPECT_EQ(refusal(request::raw(code)), ErrorCode::protocol) << code;
  EXPECT_EQ(refusal(request::validate(kMagic + 1)), ErrorCode::protocol);
  EXPECT_EQ(refusal("GET / HTTP/1.1\r\n\r\n"), ErrorCode::protocol);
  EXPECT_EQ(refusal(request::validate(), 1), ErrorCode::system);  // not refused
}

TEST(StoreProtocol, LaterRequestsMustBeKnownAndNotValidate) {
  for (int code = 19; code < 256; ++code) {
    EXPECT_EQ(refusal(request::validate() + request::raw(code)), ErrorCode::protocol) << code;
  }
  EXPECT_EQ(refusal(request::validate() + request::validate()), ErrorCode::protocol);
}

TEST(StoreProtocol, LimitsHoldToTheByte) {
  const auto with = [](const std::string& bytes) { return request::validate() + bytes; };
  EXPECT_EQ(refusal(with(request::get(std::string(kLargestKeyBytes, 'k')))), ErrorCode::system);
  EXPECT_EQ(refusal(with(request::get(std::string(kLargestKeyBytes + 1, 'k')))), ErrorCode::protocol);
  EXPECT_EQ(refusal(with(request::set("k", std::string(kLargestValueBytes, 'v')))), ErrorCode::system);
  EXPECT_EQ(refusal(with(request::set("k", std::string(kLargestValueBytes + 1, 'v')))), ErrorCode::protocol);
  const std::vector<std::string> most(kMostKeys);
  EXPECT_EQ(refusal(with(request::wait(most))), ErrorCode::system);
  EXPECT_EQ(refusal(with(request::counted(6, kMostKeys + 1, most))), ErrorCode::protocol);
}

TEST(StoreProtocol, AnImpossibleLengthIsRefusedBeforeItsBytesCome) {
  for (const std::uint64_t size : {kLargestKeyBytes + 1, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_EQ(refusal(request::validate() + request::raw(3, request::integer(size))), ErrorCode::protocol) << size;
  }
  for (const std::uint64_t count : {kMostKeys + 1, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_EQ(refusal(request::validate() + request::raw(5, request::integer(count))), ErrorCode::protocol) << count;
  }
}

TEST(StoreProtocol, AnAnnouncementTakesNoMemory) {
  RequestParser parser;
  parse(parser, request::validate() + request::raw(1, request::text("k") + request::integer(kLargestValueBytes)), 1);
  EXPECT_LT(parser.held_bytes(), 1024U);
  RequestParser counts;
  parse(counts, request::validate() + request::raw(6, request::integer(kMostKeys)), 1);
  EXPECT_LT(counts.held_bytes(), 1024U);
}

TEST(StoreProtocol, MemoryIsGivenBackAfterALargeRequest) {
  RequestParser parser;
  const std::string value(kLargestValueBytes, 'v');
  EXPECT_EQ(parse(parser, request::validate() + request::set("k", value), 65536)[1].texts[1], value);
  parse(parser, request::wait(std::vector<std::string>(kMostKeys, "key")), 65536);
  EXPECT_LT(parser.held_bytes(), 256U * 1024);
}

// Each piece must not cost a second look at all keys before it: that would be 2 * 10^9 keys here.
TEST(StoreProtocol, ManyKeysInSmallPiecesAreReadOnce) {
  RequestParser parser;
  const std::vector<std::string> keys(kMostKeys, "k");
  const auto seen = parse(parser, request::validate() + request::check(keys), 37);
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[1].texts.size(), kMostKeys);
}

TEST(StoreProtocol, WhatTheHandlerThrowsGoesThrough) {
  RequestParser parser;
  EXPECT_THROW(parser.feed(request::validate(), [](const Request&) { throw std::runtime_error("handler"); }),
               std::runtime_error);
}

}  // namespace
}  // namespace ddp::store_server
