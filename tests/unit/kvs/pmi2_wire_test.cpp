// Framing, parsing and value encoding of PMI-2.
#include "kvs/pmi2_wire.hpp"

#include "kvs/pmi_value.hpp"
#include "support/sanitized.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::kvs {
namespace {

using test::error_of;

TEST(Pmi2Message, IsFramedAsSlurmExpects) {
  const PmiMessage message{.command = "kvs-put", .fields = {{"key", "k"}, {"value", "a=b"}}};
  EXPECT_EQ(encode_pmi2(message), "28    cmd=kvs-put;key=k;value=a=b;");
}

TEST(Pmi2Message, RefusesWhatCannotBeCarried) {
  for (const std::string& value : {std::string("a;b"), std::string("a\0b", 3), std::string(1'000'000, 'x')}) {
    const Error error = test::thrown_by([&] { encode_pmi2({.command = "kvs-put", .fields = {{"value", value}}}); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  }
}

TEST(Pmi2Message, ParsesAnAnswerOfSlurm) {
  const auto message =
      parse_pmi2("cmd=fullinit-response;rc=0;rank=3;size=8;debugged=FALSE;empty=;mapping=(vector,(0,1,8));");
  EXPECT_EQ(message.command, "fullinit-response");
  EXPECT_EQ(message.number("rank"), 3);
  EXPECT_EQ(message.find("empty"), "");
  EXPECT_EQ(message.find("mapping"), "(vector,(0,1,8))");
  EXPECT_EQ(message.find("absent"), std::nullopt);
  EXPECT_EQ(error_of([&] { message.number("debugged"); })->code(), ErrorCode::protocol);
}

TEST(Pmi2Message, RefusesGarbage) {
  for (const std::string body : {"", ";", "cmd=", "cmd=;", "cmd=a", "rc=0;cmd=a;", "cmd=a;rc;", "nonsense"}) {
    const auto error = error_of([&] { parse_pmi2(body); });
    ASSERT_TRUE(error) << body;
    EXPECT_EQ(error->code(), ErrorCode::protocol);
  }
}

TEST(Pmi2Length, TakesBothPaddings) {
  EXPECT_EQ(parse_pmi2_length("27    "), 27U);
  EXPECT_EQ(parse_pmi2_length("    27"), 27U);
  EXPECT_EQ(parse_pmi2_length("999999"), 999'999U);
  for (const std::string text : {"      ", "-1    ", "2 7   ", "0x1f  ", "cmd=in", "27", "1234567"}) {
    EXPECT_TRUE(error_of([&] { parse_pmi2_length(text); })) << text;
  }
}

TEST(Pmi2Greeting, TellsRefusalFromGarbage) {
  EXPECT_NO_THROW(check_pmi2_greeting("cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0"));
  EXPECT_EQ(error_of([] { check_pmi2_greeting("cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1"); })->code(),
            ErrorCode::unavailable);
  EXPECT_EQ(error_of([] { check_pmi2_greeting("HTTP/1.1 400 Bad Request"); })->code(), ErrorCode::protocol);
}

Bytes join(std::string_view key, const std::vector<std::string>& texts) {
  PmiValueAssembler value{key, texts.at(0)};
  EXPECT_EQ(value.texts(), texts.size());
  for (std::size_t i = 1; i < texts.size(); ++i) value.add(texts[i]);
  return std::move(value).finish();
}

TEST(Pmi2Value, SurvivesTheTripAtEverySize) {
  const std::string key(64, 'k');
  for (std::size_t size = 0; size < 5000; size += ::ddp::test::kSanitized ? 7 : 1) {
    const Bytes value = test::awkward_value(1, size);
    const auto texts = split_pmi_value(key, value, kPmi2MaxValueBytes);
    for (const std::string& text : texts) {
      ASSERT_LE(text.size(), kPmi2MaxValueBytes) << size;
      ASSERT_FALSE(text.empty()) << size;
      ASSERT_TRUE(std::none_of(text.begin(), text.end(), [](char c) { return c == ';' || c <= ' '; }));
    }
    ASSERT_EQ(join(key, texts), value) << size;
  }
}

TEST(Pmi2Value, NoticesEveryDamage) {
  const Bytes value = test::awkward_value(0, 2000);
  const auto texts = split_pmi_value("key", value, kPmi2MaxValueBytes);
  ASSERT_GE(texts.size(), 3U);
  const auto code_of = [&](auto damage) {
    auto damaged = texts;
    damage(damaged);
    const auto error = error_of([&] {
      PmiValueAssembler assembler{"key", damaged.at(0)};
      for (std::size_t i = 1; i < damaged.size(); ++i) assembler.add(damaged[i]);
      std::move(assembler).finish();
    });
    return error ? std::optional{error->code()} : std::nullopt;
  };
  EXPECT_EQ(code_of([](auto&) {}), std::nullopt);
  EXPECT_EQ(code_of([](auto& t) { t[0] = t[1]; }), ErrorCode::protocol);
  EXPECT_EQ(code_of([](auto& t) { t[0][0] = '2'; }), ErrorCode::protocol);
  EXPECT_EQ(code_of([](auto& t) { t[0].replace(t[0].find("key"), 3, "kez"); }), ErrorCode::protocol);
  EXPECT_EQ(code_of([](auto& t) { t[1][5] = '+'; }), ErrorCode::protocol);
  EXPECT_EQ(code_of([](auto& t) { t.pop_back(); }), ErrorCode::protocol);
  EXPECT_EQ(code_of([](auto& t) { t.back() += "AAAA"; }), ErrorCode::protocol);
  EXPECT_EQ(code_of([](auto& t) { t[0] = "1:99999999999999999999999:1:key:"; }), ErrorCode::protocol);
  EXPECT_EQ(code_of([](auto& t) { t[0] = "1:5:0:key:"; }), ErrorCode::protocol);
}

TEST(Pmi2Code, HasAName) {
  EXPECT_EQ(pmi_code_name(2, 1), "PMI2_ERR_INIT (1)");
  EXPECT_EQ(pmi_code_name(2, 14), "PMI2_ERR_OTHER (14)");
  EXPECT_EQ(pmi_code_name(2, -1), "PMI2_FAIL (-1)");
  EXPECT_EQ(pmi_code_name(2, 15), "PMI-2 code 15");
  EXPECT_EQ(pmi_code_name(1, -1), "PMI_FAIL (-1)");
  EXPECT_EQ(pmi_code_name(1, 14), "PMI_ERR_INVALID_KVS (14)");
}

}  // namespace
}  // namespace ddp::kvs
