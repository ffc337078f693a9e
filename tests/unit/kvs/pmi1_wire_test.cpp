// Lines of PMI-1, and the limits that a server states.
#include "kvs/pmi1_wire.hpp"

#include <gtest/gtest.h>

#include <string>

#include "kvs/pmi_value.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::kvs {
namespace {

using test::error_of;
using test::thrown_by;

TEST(Pmi1Message, IsALine) {
  const PmiMessage message{.command = "put", .fields = {{"kvsname", "kvs_0"}, {"key", "k"}, {"value", "a=b"}}};
  EXPECT_EQ(encode_pmi1(message), "cmd=put kvsname=kvs_0 key=k value=a=b\n");
}

TEST(Pmi1Message, RefusesWhatCannotBeCarried) {
  for (const std::string& value :
       {std::string("a b"), std::string("a\nb"), std::string("a\0b", 3), std::string(kPmi1MostLineBytes, 'x')}) {
    EXPECT_EQ(thrown_by([&] {
                encode_pmi1({.command = "put", .fields = {{"value", value}}});
              }).code(),
              ErrorCode::invalid_argument);
  }
}

TEST(Pmi1Message, ParsesAnswersOfHydraAndFlux) {
  const auto found = parse_pmi1("cmd=get_result rc=0 msg=success value=(vector,(0,1,2))");
  EXPECT_EQ(found.command, "get_result");
  EXPECT_EQ(found.number("rc"), 0);
  EXPECT_EQ(found.find("value"), "(vector,(0,1,2))");
  const auto absent = parse_pmi1("cmd=get_result rc=-1 msg=key k not found  value=");
  EXPECT_EQ(absent.number("rc"), -1);
  EXPECT_EQ(absent.find("msg"), "key k not found");
  EXPECT_EQ(absent.find("value"), "");
  EXPECT_EQ(absent.find("other"), std::nullopt);
}

TEST(Pmi1Message, RefusesGarbage) {
  for (const std::string& line :
       {std::string(), std::string("   "), std::string("cmd="), std::string("cmd"), std::string("rc=0 cmd=a"),
        std::string("cmd=a word"), std::string("cmd=a =b"), std::string("cmd=a b=\0", 9),
        "cmd=a b=" + std::string(kPmi1MostLineBytes, 'x'), std::string("nonsense")}) {
    const auto error = error_of([&] { parse_pmi1(line); });
    ASSERT_TRUE(error) << line.substr(0, 40);
    EXPECT_EQ(error->code(), ErrorCode::protocol);
  }
}

PmiMessage maxes_answer(const std::string& key, const std::string& value) {
  return {.command = "maxes", .fields = {{"kvsname_max", "256"}, {"keylen_max", key}, {"vallen_max", value}}};
}

TEST(Pmi1Maxes, BoundALineAndAreBounded) {
  const auto hydra = read_pmi1_maxes(maxes_answer("64", "1024"));
  const std::size_t text = pmi1_text_bytes(hydra, 20);
  const PmiMessage put{.command = "put",
                       .fields = {{"kvsname", std::string(20, 'n')},
                                  {"key", std::string(kPmiMostKeyBytes, 'k')},
                                  {"value", std::string(text, 'v')}}};
  EXPECT_EQ(encode_pmi1(put).size(), 1023U) << "servers keep lines in 1024 bytes";
  EXPECT_EQ(pmi1_text_bytes(read_pmi1_maxes(maxes_answer("64", "256")), 20), 255U);
  EXPECT_LT(pmi1_text_bytes(read_pmi1_maxes(maxes_answer("64", "2000000000")), 20), kPmi1MostLineBytes);
  for (const auto& [key, value] : {std::pair{"45", "1024"}, {"64", "100"}})
    EXPECT_EQ(error_of([&, key = key, value = value] { read_pmi1_maxes(maxes_answer(key, value)); })->code(),
              ErrorCode::unavailable)
        << key;
  for (const auto& [key, value] : {std::pair{"x", "1024"}, {"64", "-1"}, {"0", "1024"}, {"64", "99999999999999"}})
    EXPECT_EQ(error_of([&, key = key, value = value] { read_pmi1_maxes(maxes_answer(key, value)); })->code(),
              ErrorCode::protocol)
        << key << value;
  EXPECT_EQ(error_of([&] { pmi1_text_bytes(hydra, 5000); })->code(), ErrorCode::protocol);
}

TEST(PmiPort, IsHostAndPort) {
  EXPECT_EQ(parse_pmi_port("n0:36249").host, "n0");
  EXPECT_EQ(parse_pmi_port("n0:36249").port, 36249);
  EXPECT_EQ(parse_pmi_port("fd00::1:99").host, "fd00::1");
  for (const char* text : {"", "n0", "n0:", ":1", "n0:0", "n0:65536", "n0:x"})
    EXPECT_EQ(error_of([&] { parse_pmi_port(text); })->code(), ErrorCode::invalid_argument) << text;
}

TEST(PmiValue, RefusesAHeaderWithMoreTextsThanCharacters) {
  EXPECT_EQ(error_of([] { PmiValueAssembler("key", "1:5:1000000000:key:"); })->code(), ErrorCode::protocol);
}

}  // namespace
}  // namespace ddp::kvs
