// ddp-step: the plugin's helper program, not for users; see ddp_step_client.hpp.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/version.hpp>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "step_program/step_agent.hpp"
#include "step_program/step_coordinator.hpp"

namespace {

namespace base = ddp::base;
using ddp::srun_plugin::StepCoordinatorOptions;
using ddp::stream::PortRange;

template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  return !text.empty() && status == std::errc{} && end == text.data() + text.size();
}

/// "60001-63000"
bool parse_range(std::string_view text, std::optional<PortRange>& ports) {
  const auto dash = text.find('-');
  PortRange range{};
  if (dash == std::string_view::npos || !parse_number(text.substr(0, dash), range.first) ||
      !parse_number(text.substr(dash + 1), range.last))
    return false;
  ports = range;
  return range.first > 0 && range.first <= range.last;
}

bool parse_seconds(std::string_view text, std::chrono::milliseconds& duration) {
  unsigned seconds = 0;
  if (!parse_number(text, seconds) || seconds == 0) return false;
  duration = std::chrono::seconds{seconds};
  return true;
}

/// @return whether it is one of the coordinator's.
bool take_option(std::string_view argument, StepCoordinatorOptions& options) {
  if (argument == "--failure-ends-step") return options.failure_ends_step = true;
  if (argument == "--nodes-expected") return options.nodes_expected = true;
  const auto equals = argument.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = argument.substr(0, equals), value = argument.substr(equals + 1);
  const std::pair<std::string_view, std::string*> texts[] = {{"--event-log", &options.event_log},
                                                             {"--program", &options.program},
                                                             {"--job", &options.job},
                                                             {"--step", &options.step}};
  for (const auto& [known, text] : texts) {
    if (name != known) continue;
    *text = value;
    return true;
  }
  if (name == "--port-range") return parse_range(value, options.ports);
  if (name == "--patience") return parse_seconds(value, options.patience);
  if (name == "--event-log-interval") return parse_seconds(value, options.event_log_interval);
  return name == "--hang-report-after" && parse_seconds(value, options.hang_report_after.emplace());
}

int usage() {
  base::write_stderr_line(
      "usage: ddp-step coordinator [--port-range=FIRST-LAST] [--failure-ends-step] [--nodes-expected] "
      "[--patience=SECONDS] [--hang-report-after=SECONDS] [--event-log=FILE --event-log-interval=SECONDS] "
      "[--program=NAME --job=ID --step=ID] | agent | before | --version\n"
      "The plugin for srun runs this; it is not meant to be run by hand.");
  return 2;
}

// ---- ddp-step before ----------------

namespace fs = std::filesystem;

/// Where it was installed relative to this program, else beside it.
std::string find_ddp_info() {
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::string installed = (folder / DDP_INFO_FROM_STEP).lexically_normal().string();
  if (::access(installed.c_str(), X_OK) == 0) return installed;
  const std::string beside = (folder / "ddp-info").string();
  return ::access(beside.c_str(), X_OK) == 0 ? beside : installed;
}

std::string read_input() {
  std::string text;
  std::array<char, 4096> block{};
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, block.data(), block.size());
    if (count == 0) return text;
    if (count > 0) {
      text.append(block.data(), static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      throw base::system_error("reading the environment of a task", errno);
    }
  }
}

/// Becomes ddp-info, with the environment that the task's program will have, which comes on standard input as in
/// /proc/PID/environ. @param words for `ddp-info before`. Returns only where it fails, having said why.
int become_ddp_info(std::span<char* const> words) {
  std::string block = read_input();
  std::vector<char*> environment;
  for (std::size_t at = 0; at < block.size(); at = block.find('\0', at) + 1) environment.push_back(&block[at]);
  environment.push_back(nullptr);
  std::string path = find_ddp_info();
  std::string name = "ddp-info";
  std::string command = "before";
  std::vector<char*> arguments{name.data(), command.data()};
  arguments.insert(arguments.end(), words.begin(), words.end());
  arguments.push_back(nullptr);
  ::execve(path.c_str(), arguments.data(), environment.data());
  base::write_stderr_line(
      fmt::format("ddp: warning: {}", base::system_error(fmt::format("executing {}", path), errno,
                                                         "is libddp's package with ddp-info installed on this node?")
                                          .what()));
  return 1;
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
  if (command == "before") return become_ddp_info(std::span{argv, std::size_t(argc)}.subspan(2));
  if (command == "agent" && argc == 2) return ddp::srun_plugin::answer_node();
  if (command != "coordinator") return usage();
  StepCoordinatorOptions options;
  for (int i = 2; i < argc; ++i) {
    if (!take_option(argv[i], options)) return usage();
  }
  return ddp::srun_plugin::coordinate_step(options);
}
