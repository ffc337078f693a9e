#include "command_line.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace ddp::srun_plugin {
namespace {

using namespace std::string_view_literals;

// Of srun, from 22.05 to 25.11: short options whose value may be the next argument.
constexpr std::string_view kShortWithValue = "ABbCcDdeFGiJLMmNnopqrSTtWwx";

// Long options whose value may be the next argument.
constexpr std::array kLongWithValue{
    "accel-bind"sv,
    "account"sv,
    "acctg-freq"sv,
    "bb"sv,
    "bbf"sv,
    "bcast-exclude"sv,
    "begin"sv,
    "cluster-constraint"sv,
    "clusters"sv,
    "comment"sv,
    "constraint"sv,
    "container"sv,
    "container-id"sv,
    "core-spec"sv,
    "cores-per-socket"sv,
    "cpu-bind"sv,
    "cpu-freq"sv,
    "cpus-per-gpu"sv,
    "cpus-per-task"sv,
    "chdir"sv,
    "deadline"sv,
    "delay-boot"sv,
    "dependency"sv,
    "distribution"sv,
    "epilog"sv,
    "error"sv,
    "exclude"sv,
    "export"sv,
    "export-file"sv,
    "extra"sv,
    "extra-node-info"sv,
    "gpu-bind"sv,
    "gpu-freq"sv,
    "gpus"sv,
    "gpus-per-node"sv,
    "gpus-per-socket"sv,
    "gpus-per-task"sv,
    "gres"sv,
    "gres-flags"sv,
    "het-group"sv,
    "hint"sv,
    "input"sv,
    "job-name"sv,
    "jobid"sv,
    "licenses"sv,
    "mail-type"sv,
    "mail-user"sv,
    "mcs-label"sv,
    "mem"sv,
    "mem-bind"sv,
    "mem-per-cpu"sv,
    "mem-per-gpu"sv,
    "mincpus"sv,
    "mpi"sv,
    "msg-timeout"sv,
    "network"sv,
    "nodefile"sv,
    "nodelist"sv,
    "nodes"sv,
    "ntasks"sv,
    "ntasks-per-core"sv,
    "ntasks-per-gpu"sv,
    "ntasks-per-node"sv,
    "ntasks-per-socket"sv,
    "open-mode"sv,
    "output"sv,
    "pack-group"sv,
    "partition"sv,
    "power"sv,
    "prefer"sv,
    "priority"sv,
    "profile"sv,
    "prolog"sv,
    "qos"sv,
    "relative"sv,
    "reservation"sv,
    "segment"sv,
    "signal"sv,
    "slurmd-debug"sv,
    "sockets-per-node"sv,
    "step"sv,
    "switches"sv,
    "task-epilog"sv,
    "task-prolog"sv,
    "tasks-per-node"sv,
    "thread-spec"sv,
    "threads"sv,
    "threads-per-core"sv,
    "time"sv,
    "time-min"sv,
    "tmp"sv,
    "treewidth"sv,
    "tres-bind"sv,
    "tres-per-job"sv,
    "tres-per-task"sv,
    "uid"sv,
    "gid"sv,
    "wait"sv,
    "wckey"sv,
    "ddp-bind"sv,
    "ddp-gpus"sv,
    "ddp-backend"sv,
    "ddp-event-log"sv,
    "ddp-event-log-interval"sv,
    "ddp-hang-report-after"sv,
};

// One whose value is optional, hence never the next argument, though the name of another begins with it.
constexpr std::string_view kBcast = "bcast";

/// The long option with a value that @p name means; empty for none. getopt_long(3) accepts a beginning that only one
/// has.
std::string_view with_value(std::string_view name) {
  const auto known = std::find(kLongWithValue.begin(), kLongWithValue.end(), name);
  if (known != kLongWithValue.end()) return *known;
  if (name.size() <= 2 || name == kBcast) return {};
  const auto begins = [&](std::string_view each) { return each.starts_with(name); };
  const auto first = std::find_if(kLongWithValue.begin(), kLongWithValue.end(), begins);
  if (first == kLongWithValue.end() || std::any_of(first + 1, kLongWithValue.end(), begins)) return {};
  return *first;
}

/// The value of --kill-on-bad-exit, which is optional.
bool kills(std::string_view value) { return value.find_first_not_of('0') != std::string_view::npos || value.empty(); }

/// Reads the short options in one argument, as "-lN". Returns whether the next argument is the value of the last.
bool read_short(std::string_view letters, CommandLine& found) {
  for (std::size_t i = 0; i < letters.size(); ++i) {
    if (letters[i] == 'c') found.cpus_per_task = true;
    if (letters[i] == 'D') found.other_files = true;
    if (letters[i] == 'k') found.no_kill = true;
    if (letters[i] == 'K') {
      found.kill_on_bad_exit = kills(letters.substr(i + 1));
      return false;
    }
    if (kShortWithValue.find(letters[i]) == std::string_view::npos) continue;
    return i + 1 == letters.size();  // else the rest is the value
  }
  return false;
}

/// Whether the value of --het-group names more than one component, as "0,2" or "0-1".
bool names_several(std::string_view groups) {
  const auto border = groups.find_first_of(",-");
  return border != std::string_view::npos && border > 0;
}

/// Whether @p given is @p option, or enough of its beginning that getopt_long(3) knows it.
bool begins_as(std::string_view given, std::string_view option, std::size_t enough) {
  return given.size() >= enough && option.starts_with(given);
}

bool names_groups(std::string_view option) { return option == "het-group" || option == "pack-group"; }

/// The same for a long one, without its dashes. Returns its name if the next argument is its value, else nothing.
std::string_view read_long(std::string_view text, CommandLine& found) {
  const auto equals = text.find('=');
  const std::string_view given = text.substr(0, equals);
  const std::string_view name = with_value(given);
  if (given == "ddp" && equals == std::string_view::npos) found.ddp = true;
  if (given.starts_with("ddp-")) found.ddp_detail += (found.ddp_detail.empty() ? "--" : ", --") + std::string(given);
  if (name == "chdir" || given.starts_with("container")) found.other_files = true;
  if (given == "interactive") found.interactive = true;
  if (begins_as(given, "no-kill", 4)) found.no_kill = true;
  if (begins_as(given, "kill-on-bad-exit", 1))
    found.kill_on_bad_exit = kills(equals == std::string_view::npos ? std::string_view{} : text.substr(equals + 1));
  if (name == "cpus-per-task") found.cpus_per_task = true;
  if (equals == std::string_view::npos) return name;
  if (names_groups(name) && names_several(text.substr(equals + 1))) found.components = true;
  return {};
}

}  // namespace

CommandLine read_command_line(std::span<const std::string> arguments) {
  CommandLine found;
  bool skip = true;           // the program's name, or the value of an option
  std::string_view value_of;  // which of the long ones
  bool command = false;       // in the user's program
  for (const std::string& argument : arguments) {
    const std::string_view text = argument;
    if (skip) {
      if (names_groups(value_of) && names_several(text)) found.components = true;
      skip = false;
    } else if (text == ":") {
      // The border to the next component, which may also stand where the first one's program would.
      found.components = command = true;
    } else if (command) {
      if (!found.components) found.command.push_back(argument);
    } else if (text == "--") {
      command = true;
    } else if (text.size() < 2 || text[0] != '-') {
      command = true;
      found.command.push_back(argument);
    } else if (text[1] == '-') {
      value_of = read_long(text.substr(2), found);
      skip = !value_of.empty();
    } else {
      value_of = {};
      skip = read_short(text.substr(1), found);
    }
  }
  if (!found.command.empty()) found.program = found.command.front();
  return found;
}

std::span<const std::string> own_arguments() {
  static const std::vector<std::string> arguments = [] {
    // Not a stream: those bring the library's locales into every process that loads the plugin.
    std::vector<std::string> list;
    const std::unique_ptr<FILE, decltype(&std::fclose)> file(std::fopen("/proc/self/cmdline", "re"), &std::fclose);
    if (file == nullptr) return list;
    std::string text;
    for (int letter = std::fgetc(file.get()); letter != EOF; letter = std::fgetc(file.get())) {
      if (letter != 0) {
        text += static_cast<char>(letter);
      } else {
        list.push_back(std::exchange(text, {}));
      }
    }
    return list;
  }();
  return arguments;
}

}  // namespace ddp::srun_plugin
