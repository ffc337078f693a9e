#include "base/slurm_step.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "base/byte_stream.hpp"

namespace ddp::base {
namespace {

constexpr std::uint32_t kMaxNormalStepId = 0xfffffff0;  // SLURM_MAX_NORMAL_STEP_ID

SlurmStep::Kind kind_of(const std::string& step_id) {
  std::uint32_t number = 0;
  const char* const last = step_id.data() + step_id.size();
  const auto [end, status] = std::from_chars(step_id.data(), last, number);
  if (step_id.empty() || status != std::errc{} || end != last) return SlurmStep::Kind::none;
  return is_user_step(number) ? SlurmStep::Kind::user : SlurmStep::Kind::special;
}

}  // namespace

bool is_user_step(std::uint32_t step_id) { return step_id < kMaxNormalStepId; }

SlurmStep SlurmStep::read(const Environment& environment) {
  const auto text = [&](const char* variable) { return environment.raw(variable).value_or(""); };
  const std::string step_id = text("SLURM_STEP_ID");
  return {.kind = kind_of(step_id),
          .name = fmt::format("{}.{}", environment.raw("SLURM_JOB_ID").value_or("0"), step_id.empty() ? "0" : step_id),
          .rank = environment.number("SLURM_PROCID"),
          .num_tasks = environment.number("SLURM_STEP_NUM_TASKS"),
          .local_rank = environment.number("SLURM_LOCALID"),
          .node_rank = environment.number("SLURM_NODEID"),
          .num_nodes = environment.number("SLURM_STEP_NUM_NODES"),
          .tasks_per_node = text("SLURM_STEP_TASKS_PER_NODE"),
          .node_list = text("SLURM_STEP_NODELIST"),
          .node_name = text("SLURMD_NODENAME")};
}

namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char letter) {
    return letter == '_' || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9');
  });
}

std::optional<StepVariable> parse_variable(std::string_view text) {
  constexpr std::size_t kDigits = 8;
  const auto equals = text.find('=');
  if (equals == std::string_view::npos || !is_name(text.substr(0, equals))) return std::nullopt;
  StepVariable variable{.name = std::string(text.substr(0, equals)), .digest = 0};
  const std::string_view digits = text.substr(equals + 1);
  const char* const last = digits.data() + digits.size();
  const auto [end, status] = std::from_chars(digits.data(), last, variable.digest, 16);
  if (digits.size() != kDigits || status != std::errc{} || end != last) return std::nullopt;
  return variable;
}

}  // namespace

std::uint32_t value_digest(std::string_view value) { return static_cast<std::uint32_t>(Fnv1a().add(value).value()); }

std::string encode(const StepSettings& settings) {
  std::string text = settings.step + ":" + settings.cpus + ":";
  for (const StepVariable& variable : settings.variables) {
    if (text.back() != ':') text += ',';
    text += fmt::format("{}={:08x}", variable.name, variable.digest);
  }
  return text;
}

std::optional<StepSettings> parse_step_settings(std::string_view text) {
  StepSettings settings;
  for (std::string* const field : {&settings.step, &settings.cpus}) {
    const auto colon = text.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    *field = text.substr(0, colon);
    text.remove_prefix(colon + 1);
  }
  if (settings.step.find_first_not_of("0123456789.") != std::string::npos) return std::nullopt;
  if (settings.cpus.find_first_not_of("0123456789,-") != std::string::npos) return std::nullopt;
  if (text.empty()) return settings;
  while (true) {
    const auto comma = text.find(',');
    const auto variable = parse_variable(text.substr(0, comma));
    if (!variable) return std::nullopt;
    settings.variables.push_back(*variable);
    if (comma == std::string_view::npos) return settings;
    text.remove_prefix(comma + 1);
  }
}

std::optional<StepSettings> drop_step_settings() {
  const char* const text = std::getenv(kStepSettingsVariable);
  if (text == nullptr) return std::nullopt;
  auto settings = parse_step_settings(text);
  ::unsetenv(kStepSettingsVariable);
  if (!settings) return std::nullopt;
  for (const StepVariable& variable : settings->variables) {
    const char* const value = std::getenv(variable.name.c_str());
    if (value != nullptr && value_digest(value) == variable.digest) ::unsetenv(variable.name.c_str());
  }
  const char* const job = std::getenv("SLURM_JOB_ID");
  const char* const step = std::getenv("SLURM_STEP_ID");
  if (job == nullptr || step == nullptr || settings->step != std::string(job) + "." + step) settings->cpus.clear();
  return settings;
}

}  // namespace ddp::base
