#include "srun_side/step_ticket.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

namespace ddp::srun_plugin {
namespace {

using ::testing::HasSubstr;

const std::string kSecret = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

StepTicket sample() {
  return {.options = {.enabled = true,
                      .bind = BindPolicy::core,
                      .gpus = topology::GpuVisibility::one,
                      .backend = "gloo",
                      .verbose = true,
                      .metrics_port = 9464,
                      .metrics_address = "::1",
                      .hang_report_after_s = 900},
          .port = 60123,
          .secret = kSecret,
          .patience_seconds = 60,
          .pmi_available = false,
          .progress_seconds = 70'000,
          .version = "1.2.3"};
}

std::string ticket_refusal(const std::string& text) {
  try {
    parse_ticket(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::protocol) << text;
    return error.what();
  }
  return "it was accepted: " + text;
}

TEST(StepTicket, ComesBackAsItWas) {
  EXPECT_EQ(parse_ticket(encode(sample())), sample());
  StepTicket without_store;
  without_store.options.enabled = true;
  EXPECT_EQ(parse_ticket(encode(without_store)), without_store);
}

TEST(StepTicket, IsOneWordForTheEnvironment) {
  EXPECT_EQ(encode(sample()).find_first_of(" \t\n='\"\\$"), std::string::npos) << encode(sample());
  EXPECT_LT(encode(sample()).size(), 256U);
}

TEST(StepTicket, EveryTruncationIsAnError) {
  const std::string whole = encode(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(ticket_refusal(whole.substr(0, size)), HasSubstr("SLURM_DDP_STEP")) << size;
  }
}

TEST(StepTicket, MalformedOnesAreErrors) {
  const std::string good = "5;60123;" + kSecret + ";core;one;gloo;60;1.2.3;9464;::1;70000;900;1;0";
  ASSERT_EQ(parse_ticket(good), sample());
  const auto with = [&](std::size_t field, const std::string& text) {
    std::vector<std::string> fields{"5",     "60123", kSecret, "core",  "one", "gloo", "60",
                                    "1.2.3", "9464",  "::1",   "70000", "900", "1",    "0"};
    fields.at(field) = text;
    std::string all;
    for (const std::string& each : fields) all += (all.empty() ? "" : ";") + each;
    return all;
  };
  struct Malformed {
    std::string text;
    const char* says;
  };
  const std::vector<Malformed> cases{
      {"", "version is ''"},
      {";", "version is ''"},
      {with(0, "2"), "version is '2', not 5"},
      {with(6, "long"), "'long' is no number of seconds"},
      {with(0, "11"), "version"},
      {with(0, " 1"), "version"},
      {with(0, std::string(1000, 'x')), "version is 'xxxxxxxxxxxxxxxx', not"},
      {good + ";", "15 fields, not 14"},
      {good + ";more", "15 fields"},
      {"5", "1 fields"},
      {with(1, ""), "'' is no port"},
      {with(1, "65536"), "'65536' is no port"},
      {with(1, "-1"), "no port"},
      {with(1, "+1"), "no port"},
      {with(1, "60123 "), "no port"},
      {with(1, "0x10"), "no port"},
      {with(1, "0"), "secret"},
      {with(2, ""), "secret"},
      {with(2, kSecret.substr(1)), "secret"},
      {with(2, kSecret + "0"), "secret"},
      {with(2, "A" + kSecret.substr(1)), "secret"},
      {with(2, "g" + kSecret.substr(1)), "secret"},
      {with(3, "cores"), "'cores' is not known"},
      {with(3, ""), "'' is not known"},
      {with(4, "two"), "'two' is not known"},
      {with(5, "MPI"), "'MPI' is not known"},
      {with(12, "2"), "'2' is neither 0 nor 1"},
      {with(12, ""), "'' is neither"},
      {with(7, ""), "no version"},
      {with(7, "1 2"), "no version"},
      {with(13, "true"), "'true' is neither"},
      {with(8, ""), "'' is no port"},
      {with(8, "auto"), "'auto' is no port"},
      {with(9, ""), "no address"},
      {with(9, "n0"), "'n0' is no address"},
      {with(10, "-1"), "no number of seconds"},
      {with(11, "none"), "no number of seconds"},
      {good + "\n", "neither"},
      {good + std::string(1, '\0'), "'0"},
  };
  for (const Malformed& each : cases) EXPECT_THAT(ticket_refusal(each.text), HasSubstr(each.says)) << each.text;
}

TEST(StepTicket, ErrorsDoNotTellTheSecret) {
  EXPECT_THAT(ticket_refusal("5;60123;" + kSecret + "0;core;one;gloo;60;1.2.3;none;::1;0;0;1;0"),
              ::testing::Not(HasSubstr(kSecret.substr(0, 8))));
}

}  // namespace
}  // namespace ddp::srun_plugin
