#include <ddp/error.hpp>

#include "srun_side/plugin_options.hpp"

namespace ddp::srun_plugin {
namespace {

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
  StepTicket without_port;
  without_port.options.enabled = true;
  EXPECT_EQ(parse_ticket(encode(without_port)), without_port);
}

TEST(StepTicket, IsOneWordForTheEnvironment) {
  EXPECT_EQ(encode(sample()).find_first_of(" \t\n='\"\\$"), std::string::npos) << encode(sample());
  EXPECT_LT(encode(sample()).size(), 512U) << "what TaskSide reads";
}

TEST(StepTicket, EveryTruncationIsAnError) {
  const std::string whole = encode(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(ticket_refusal(whole.substr(0, size)), HasSubstr("SLURM_DDP_STEP")) << size;
  }
}

TEST(StepTicket, MalformedOnesAreErrors) {
  const auto with = [](const auto& change) {
    StepTicket ticket = sample();
    change(ticket);
    return encode(ticket);
  };
  const std::string good = encode(sample());
  struct Malformed {
    std::string text;
    const char* says;
  };
  const std::vector<Malformed> cases{
      {"", "version is ''"},
      {";", "version is ''"},
      {"2" + good.substr(1), "version is '2', not 6"},
      {"1" + good, "version"},
      {" " + good, "version"},
      {std::string(1000, 'x') + good, "version is 'xxxxxxxxxxxxxxxx', not"},
      {"6", "version is '6'"},
      {"6;", "ends"},
      {good + "0", "it is cut"},
      {good + "00", "too many"},
      {good + "\n\n", "other letters"},
      {good + "FF", "other letters"},
      {with([](StepTicket& ticket) { ticket.port = 0; }), "secret"},
      {with([](StepTicket& ticket) { ticket.secret.clear(); }), "secret"},
      {with([](StepTicket& ticket) { ticket.secret.pop_back(); }), "secret"},
      {with([](StepTicket& ticket) { ticket.secret[0] = 'A'; }), "secret"},
      {with([](StepTicket& ticket) { ticket.options.backend = "MPI"; }), "'MPI'"},
      {with([](StepTicket& ticket) { ticket.options.metrics_address = "a/b"; }), "metrics_address"},
      {with([](StepTicket& ticket) { ticket.options.bind = static_cast<BindPolicy>(9); }), "bind"},
      {with([](StepTicket& ticket) { ticket.version = "1\n2"; }), "version"},
  };
  for (const Malformed& each : cases) EXPECT_THAT(ticket_refusal(each.text), HasSubstr(each.says)) << each.text;
}

TEST(StepTicket, ErrorsDoNotTellTheSecret) {
  StepTicket ticket = sample();
  ticket.secret += "0";
  EXPECT_THAT(ticket_refusal(encode(ticket)), ::testing::Not(HasSubstr(kSecret.substr(0, 8))));
}

}  // namespace
}  // namespace ddp::srun_plugin
