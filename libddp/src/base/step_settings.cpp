#include "base/step_settings.hpp"

#include <algorithm>
#include <cstdlib>

namespace ddp::base {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char letter) {
    return letter == '_' || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9');
  });
}

}  // namespace

std::string encode(const StepSettings& settings) {
  std::string text = settings.step + ":" + settings.cpus + ":";
  for (const std::string& name : settings.names) {
    if (text.back() != ':') text += ',';
    text += name;
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
    const std::string_view name = text.substr(0, comma);
    if (!is_name(name)) return std::nullopt;
    settings.names.emplace_back(name);
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
  for (const std::string& name : settings->names) ::unsetenv(name.c_str());
  const char* const job = std::getenv("SLURM_JOB_ID");
  const char* const step = std::getenv("SLURM_STEP_ID");
  if (job == nullptr || step == nullptr || settings->step != std::string(job) + "." + step) settings->cpus.clear();
  return settings;
}

}  // namespace ddp::base
