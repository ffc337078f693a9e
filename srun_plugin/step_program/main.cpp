// ddp-step: the plugin's helper program, not for users; see ddp_step_client.hpp.

#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <ddp/version.hpp>

#include "base/log.hpp"
#include "step_program/before_command.hpp"
#include "step_program/plan_command.hpp"
#include "step_program/store_command.hpp"
#include "step_program/witness_command.hpp"

namespace {

using ddp::store_server::PortRange;

/// "60001-63000"
std::optional<PortRange> parse_range(std::string_view text) {
  const auto dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  PortRange range{};
  const std::string_view parts[] = {text.substr(0, dash), text.substr(dash + 1)};
  std::uint16_t* const numbers[] = {&range.first, &range.last};
  for (int i = 0; i < 2; ++i) {
    const auto [end, status] = std::from_chars(parts[i].data(), parts[i].data() + parts[i].size(), *numbers[i]);
    if (parts[i].empty() || status != std::errc{} || end != parts[i].data() + parts[i].size()) return std::nullopt;
  }
  return range;
}

bool take_log_option(std::string_view argument, ddp::srun_plugin::StepLogOptions& log) {
  std::string interval;
  const std::pair<std::string_view, std::string*> options[] = {{"--event-log=", &log.path},
                                                               {"--event-log-interval=", &interval},
                                                               {"--program=", &log.program},
                                                               {"--job=", &log.job},
                                                               {"--step=", &log.step}};
  for (const auto& [name, value] : options) {
    if (!argument.starts_with(name)) continue;
    *value = argument.substr(name.size());
    unsigned seconds = 0;
    if (value != &interval) return true;
    const auto [end, status] = std::from_chars(interval.data(), interval.data() + interval.size(), seconds);
    log.interval = std::chrono::seconds{seconds};
    return status == std::errc{} && end == interval.data() + interval.size() && seconds > 0;
  }
  return false;
}

int usage() {
  ddp::base::write_stderr_line(
      "usage: ddp-step store [--port-range=FIRST-LAST] [--failure-ends-step] [--nodes-expected] "
      "[--hang-report-after=SECONDS] [--event-log=FILE "
      "--event-log-interval=SECONDS --program=NAME --job=ID --step=ID] | witness | plan | before | --version\n"
      "The plugin for srun runs this; it is not meant to be run by hand.");
  return 2;
}

}  // namespace

#ifdef DDP_THREAD_SANITIZER
// It is started without TSAN_OPTIONS. libstdc++ is not instrumented: how it counts an exception_ptr's references is not
// seen.
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
#endif

int main(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "--version" && argc == 2) {
    std::puts("ddp-step " DDP_VERSION_STRING);
    return 0;
  }
  if (command == "plan" && argc == 2) return ddp::srun_plugin::answer_plan();
  if (command == "before") return ddp::srun_plugin::become_ddp_info(std::span{argv, std::size_t(argc)}.subspan(2));
  if (command == "witness" && argc == 2) return ddp::srun_plugin::witness_connections();
  if (command != "store") return usage();
  ddp::srun_plugin::StoreCommand store;
  for (int i = 2; i < argc; ++i) {
    constexpr std::string_view kRange = "--port-range=";
    constexpr std::string_view kHang = "--hang-report-after=";
    const std::string_view argument = argv[i];
    if (argument == "--failure-ends-step") {
      store.failure_ends_step = true;
    } else if (argument == "--nodes-expected") {
      store.nodes_expected = true;
    } else if (take_log_option(argument, store.log)) {
      continue;
    } else if (argument.starts_with(kHang)) {
      unsigned seconds = 0;
      const std::string_view text = argument.substr(kHang.size());
      const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seconds);
      if (status != std::errc{} || end != text.data() + text.size() || seconds == 0) return usage();
      store.hang_report_after = std::chrono::seconds{seconds};
    } else if (argument.starts_with(kRange)) {
      store.ports = parse_range(argument.substr(kRange.size()));
      if (!store.ports) return usage();
    } else {
      return usage();
    }
  }
  return ddp::srun_plugin::serve_store(store);
}
