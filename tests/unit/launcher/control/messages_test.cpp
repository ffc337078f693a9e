// Every message survives its way over the wire, and nothing that encode() does not make is taken for one.
#include "control/messages.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <type_traits>

#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "control/cbor_shape.hpp"

namespace ddp::launcher::control {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Bytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span{text});
  return {bytes.begin(), bytes.end()};
}

// No field has its default, so that one that is forgotten shows.
std::vector<Message> samples() {
  const NodeLayout node{.host = "n2", .nproc = 8, .role = "worker", .addresses = {"10.0.0.2", "fd00::2"}};
  return {
      Hello{.version = "0.1.0",
            .run_id = "42",
            .host = "n1",
            .addresses = {"10.0.0.1", "fe80::1%eth0"},
            .order = 3,
            .nproc = 8,
            .role = "trainer",
            .program = "train.py",
            .pid = 4'000'000},
      AttemptPrepared{.attempt = 1, .store_port = 65535},
      RanksStarted{.attempt = 2, .pids = {1, 2, std::numeric_limits<std::int64_t>::max()}},
      AttemptFailed{.attempt = 1, .message = "fork: no memory", .exit_status = 126},
      RankEnded{.attempt = 1,
                .local_rank = 7,
                .code = 11,
                .by_signal = true,
                .core_dumped = true,
                .time_ns = 1'700'000'000'123'456'789,
                .error_file = "/tmp/e.json",
                .error_content = std::string{"\0{\"a\":1}", 8},
                .stderr_tail = "line\n\xFF\xC0 no UTF-8",
                .oom = "killed"},
      RankAborted{.attempt = 1, .local_rank = 2, .status = std::numeric_limits<int>::min(), .message = "gave up"},
      RankStopped{.attempt = 1, .local_rank = 3, .signal = 19},
      AttemptCleaned{.attempt = 1, .left_behind = 4},
      SignalReceived{.signal = 15, .by_slurm = true},
      PrepareAttempt{.attempt = 1,
                     .max_restarts = 3,
                     .node_rank = 1,
                     .serve_store = true,
                     .run_id = "42",
                     .name_space = "ddp.42.1",
                     .log_suffix = "abcd",
                     .terminal_out = true,
                     .terminal_err = false,
                     .nodes = {node, NodeLayout{}, node}},
      StartAttempt{.attempt = 1, .store_addresses = {"10.0.0.1"}, .store_port = 29500},
      SignalRanks{.attempt = 1, .groups = true, .signal = 9, .may_have_reached_ranks = true},
      EndAttempt{.attempt = std::numeric_limits<int>::max(), .drain_ms = 600'000},
      Finish{.exit_status = 143, .message = "bye"},
      Fence{.attempt = 1, .ranks = {0, 5, 100'000}, .data = bytes_of(std::string("a\0b\xFF", 4)), .status = -1},
      ModexRequest{.attempt = 1, .id = std::numeric_limits<std::int64_t>::min(), .from_node = 2, .rank = -2},
      ModexReply{.attempt = 1, .id = 9, .to_node = 2, .status = -46, .data = bytes_of("x")},
  };
}

json as_json(const Message& message) {
  const Bytes bytes = encode(message);
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return json::from_cbor(begin, begin + bytes.size());
}

Bytes as_bytes(const json& value) {
  const auto cbor = json::to_cbor(value);
  const auto* begin = reinterpret_cast<const std::byte*>(cbor.data());
  return {begin, begin + cbor.size()};
}

/// What the error says; an empty text if there is none.
std::string refusal_of(const Bytes& bytes) {
  try {
    decode(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    return error.what();
  }
  return {};
}

TEST(ControlMessages, EveryMessageComesBackAsItWas) {
  std::set<std::size_t> kinds;
  for (const Message& message : samples()) {
    EXPECT_EQ(decode(encode(message)), message) << name_of(message);
    kinds.insert(message.index());
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Message>);
}

template <class... Kinds>
std::vector<Message> defaults_of(std::type_identity<std::variant<Kinds...>>) {
  return {Kinds{}...};
}

TEST(ControlMessages, EveryDefaultComesBackAsItWas) {
  for (const Message& message : defaults_of(std::type_identity<Message>{})) {
    EXPECT_EQ(decode(encode(message)), message) << name_of(message);
  }
}

TEST(ControlMessages, AMissingFieldIsNamed) {
  for (const Message& message : samples()) {
    const json whole = as_json(message);
    for (const auto& [key, value] : whole.items()) {
      if (key == "is") continue;
      json cut = whole;
      cut.erase(key);
      EXPECT_THAT(refusal_of(as_bytes(cut)), HasSubstr(std::string(name_of(message)) + ": '" + key + "' is missing"));
    }
    json nameless = whole;
    nameless.erase("is");
    EXPECT_THAT(refusal_of(as_bytes(nameless)), HasSubstr("does not say what it is"));
  }
}

TEST(ControlMessages, AWrongTypeIsRefusedAndNamed) {
  const json others[] = {nullptr,       true, 1, 1.5, "text", json::binary({1}), json::array({json::object()}),
                         json::object()};
  for (const Message& message : samples()) {
    const json whole = as_json(message);
    for (const auto& [key, value] : whole.items()) {
      for (const json& other : others) {
        if (other.type() == value.type() || (other.is_number_integer() && value.is_number_integer())) continue;
        json wrong = whole;
        wrong[key] = other;
        const std::string field = key == "is" ? "does not say what it is" : "'" + key + "'";
        EXPECT_THAT(refusal_of(as_bytes(wrong)), HasSubstr(field)) << name_of(message) << " " << other;
      }
      if (!value.is_array()) continue;
      json wrong = whole;
      wrong[key].push_back(json::array());
      const std::string place = "'" + key + "'[" + std::to_string(value.size()) + "]";
      EXPECT_THAT(refusal_of(as_bytes(wrong)), HasSubstr(place)) << name_of(message);
    }
  }
}

TEST(ControlMessages, AFieldOfANestedMapIsNamedWithItsPlace) {
  json layout = as_json(samples()[9]);
  ASSERT_EQ(layout["is"], "PrepareAttempt");
  layout["nodes"][2]["addresses"][1] = 5;
  EXPECT_THAT(refusal_of(as_bytes(layout)), HasSubstr("PrepareAttempt: 'nodes'[2]: 'addresses'[1] is not a text"));
}

TEST(ControlMessages, NumbersOutOfRangeAreRefusedAndNamed) {
  const auto refused = [](const Message& message, const char* key, const json& number) {
    json wrong = as_json(message);
    wrong[key] = number;
    EXPECT_THAT(refusal_of(as_bytes(wrong)), HasSubstr(std::string("'") + key + "' is ")) << number;
  };
  constexpr std::int64_t kAboveInt = std::int64_t{std::numeric_limits<int>::max()} + 1;
  for (const Message& message : samples()) {
    const json whole = as_json(message);
    for (const auto& [key, value] : whole.items()) {
      if (!value.is_number_integer()) continue;
      refused(message, key.c_str(), std::numeric_limits<std::uint64_t>::max());
      refused(message, key.c_str(), std::uint64_t{1} << 63U);
      if (key == "attempt") refused(message, "attempt", -1);
      if (key == "attempt" || key == "local_rank" || key == "nproc") refused(message, key.c_str(), kAboveInt);
    }
  }
  refused(AttemptPrepared{}, "store_port", 65536);
  refused(AttemptPrepared{}, "store_port", -1);
  refused(Finish{}, "exit_status", 256);
  refused(SignalRanks{}, "signal", 65);
  refused(Hello{}, "order", -2);
  json wrong = as_json(Fence{});
  wrong["ranks"] = json::array({1, -1});
  EXPECT_THAT(refusal_of(as_bytes(wrong)), HasSubstr("Fence: 'ranks'[1] is -1"));
}

TEST(ControlMessages, UnknownFieldsAreIgnoredAndUnknownNamesAreNot) {
  json more = as_json(SignalReceived{.signal = 3});
  more["new"] = json::array({1, json::object({{"a", nullptr}, {"b", 1.5}})});
  EXPECT_EQ(decode(as_bytes(more)), Message{SignalReceived{.signal = 3}});
  more["is"] = "Heart\nbeat";
  EXPECT_THAT(refusal_of(as_bytes(more)), HasSubstr("there is no message 'Heart?beat'"));
  more["is"] = "NodeLayout";  // a part of messages, but none itself
  EXPECT_THAT(refusal_of(as_bytes(more)), HasSubstr("there is no message"));
}

TEST(ControlMessages, EveryBeginningAndEveryContinuationIsRefused) {
  for (const Message& message : samples()) {
    const Bytes whole = encode(message);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_NE(refusal_of({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}), "") << size;
    }
    Bytes longer = whole;
    longer.push_back(std::byte{0});
    EXPECT_THAT(refusal_of(longer), HasSubstr("goes on after its end"));
  }
}

TEST(ControlMessages, OtherThingsThanMapsAreRefused) {
  for (const json& other : {json{}, json(1), json("EndAttempt"), json::array({"is", "EndAttempt"}), json::object()}) {
    EXPECT_NE(refusal_of(as_bytes(other)), "") << other;
  }
  EXPECT_NE(refusal_of(bytes_of(std::string("\xA1\x01\x02", 3))), "");  // a number as key
  EXPECT_NE(refusal_of(bytes_of("GET / HTTP/1.1\r\n")), "");
}

// Each of these bytes opens one more level; a reader that recurses needs gigabytes of stack.
TEST(ControlMessages, NestingBombsAreRefused) {
  const struct {
    unsigned char byte;
    const char* what;
  } bombs[] = {{0x81, "array of one"},
               {0x9F, "array without length"},
               {0xA1, "map of one"},
               {0xBF, "map"},
               {0x5F, "byte string without length"},
               {0x7F, "text without length"},
               {0xC1, "tag"},
               {0xD8, "long tag"}};
  for (const auto& bomb : bombs) {
    const Bytes bytes(std::size_t{8} << 20U, static_cast<std::byte>(bomb.byte));
    EXPECT_NE(refusal_of(bytes), "") << bomb.what;
    Bytes inside = as_bytes(json{{"is", "SignalReceived"}, {"signal", 1}, {"by_slurm", false}});
    inside[0] = std::byte{0xA4};
    const Bytes key = bytes_of("\x61x");
    inside.insert(inside.end(), key.begin(), key.end());
    inside.insert(inside.end(), bytes.begin(), bytes.end());
    EXPECT_NE(refusal_of(inside), "") << bomb.what;
  }
}

TEST(ControlMessages, LengthsThatAreNotThereAreRefusedWithoutMemory) {
  for (const unsigned char head : {0x5B, 0x7B, 0x9B, 0xBB}) {
    for (const unsigned char length : {0x00, 0x7F, 0x80, 0xFF}) {
      Bytes bytes(9, std::byte{length});
      bytes[0] = std::byte{head};
      bytes[8] = std::byte{0x10};
      EXPECT_THAT(refusal_of(bytes), HasSubstr("ends too early"));
    }
  }
}

TEST(ControlMessages, DepthAndNumberOfValuesAreLimited) {
  const auto nested = [](std::size_t depth) {
    Bytes bytes(depth, std::byte{0x81});
    bytes.push_back(std::byte{0x01});
    return bytes;
  };
  EXPECT_EQ(flaw_of_cbor(nested(kMaxCborDepth)), nullptr);
  EXPECT_STREQ(flaw_of_cbor(nested(kMaxCborDepth + 1)), "it is nested too deep");
  const auto list = [](std::uint32_t count) {
    Bytes bytes(5 + count, std::byte{0x01});
    bytes[0] = std::byte{0x9A};
    for (std::size_t i = 0; i < 4; ++i) bytes[1 + i] = static_cast<std::byte>(count >> (24 - 8 * i) & 0xFFU);
    return bytes;
  };
  EXPECT_EQ(flaw_of_cbor(list(kMaxCborItems - 1)), nullptr);
  EXPECT_STREQ(flaw_of_cbor(list(kMaxCborItems)), "it has too many values");
}

// -1 - 2^63 and below: readers that compute in 64 bits make positive numbers of them.
TEST(ControlMessages, NumbersBelow64BitsAreRefused) {
  Bytes bytes = as_bytes(as_json(SignalReceived{.signal = -1}));
  ASSERT_EQ(bytes.back(), std::byte{0x20});
  Bytes huge(9, std::byte{0xFF});
  huge[0] = std::byte{0x3B};
  bytes.pop_back();
  bytes.insert(bytes.end(), huge.begin(), huge.end());
  EXPECT_THAT(refusal_of(bytes), HasSubstr("number out of range"));
}

TEST(ControlMessages, NamesAreThoseOfTheTypes) {
  EXPECT_STREQ(name_of(RankEnded{}), "RankEnded");
  EXPECT_STREQ(name_of(Fence{}), "Fence");
}

}  // namespace
}  // namespace ddp::launcher::control
