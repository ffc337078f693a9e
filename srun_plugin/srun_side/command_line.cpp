#include "srun_side/command_line.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/unique_fd.hpp"

namespace ddp::srun_plugin {
namespace {

using namespace std::string_view_literals;

// Short options of srun 22.05 to 25.11 whose value may be the next argument.
constexpr std::string_view kShortWithValue = "ABbCcDdeFGiJLMmNnopqrSTtWwx";

// Its long options whose value may be the next argument.
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
    "ddp-as"sv,
    "ddp-imitate"sv,
    "ddp-event-log"sv,
    "ddp-event-log-interval"sv,
    "ddp-hang-report-after"sv,
};

// Its value is optional, hence never the next argument, though another option's name begins the same.
constexpr std::string_view kBcast = "bcast";

/// The long option with a value that @p name means; empty if there is none. getopt_long(3) accepts an unambiguous
/// prefix.
std::string_view with_value(std::string_view name) {
  const auto known = std::find(kLongWithValue.begin(), kLongWithValue.end(), name);
  if (known != kLongWithValue.end()) return *known;
  if (name.size() <= 2 || name == kBcast) return {};
  const auto begins = [&](std::string_view each) { return each.starts_with(name); };
  const auto first = std::find_if(kLongWithValue.begin(), kLongWithValue.end(), begins);
  if (first == kLongWithValue.end() || std::any_of(first + 1, kLongWithValue.end(), begins)) return {};
  return *first;
}

/// Reads the value of --kill-on-bad-exit, which is optional.
bool kills(std::string_view value) { return value.find_first_not_of('0') != std::string_view::npos || value.empty(); }

/// Reads the short options in one argument, as "-lN". Returns whether the next argument is the last one's value.
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
    return i + 1 == letters.size();  // otherwise the rest is the value
  }
  return false;
}

/// Whether the value of --het-group names more than one component, as "0,2" or "0-1".
bool names_several(std::string_view groups) {
  const auto border = groups.find_first_of(",-");
  return border != std::string_view::npos && border > 0;
}

/// Whether @p given is @p option, or a prefix long enough for getopt_long(3).
bool begins_as(std::string_view given, std::string_view option, std::size_t enough) {
  return given.size() >= enough && option.starts_with(given);
}

bool names_groups(std::string_view option) { return option == "het-group" || option == "pack-group"; }

void read_value(std::string_view option, std::string_view value, CommandLine& found) {
  if (names_groups(option) && names_several(value)) found.components = true;
  if (option == "mpi") found.mpi = value;
}

/// Reads a long option, without its dashes. Returns its name if the next argument is its value, else nothing.
std::string_view read_long(std::string_view text, CommandLine& found) {
  const auto equals = text.find('=');
  const std::string_view given = text.substr(0, equals);
  const std::string_view name = with_value(given);
  if (given == "ddp" && equals == std::string_view::npos) found.ddp = true;
  if (given.starts_with("ddp-")) found.ddp_detail += (found.ddp_detail.empty() ? "--" : ", --") + std::string(given);
  if (name == "chdir" || given.starts_with("container")) found.other_files = true;
  if (given == "interactive") found.interactive = true;
  if (name == "jobid") found.job_id = true;
  if (begins_as(given, "no-kill", 4)) found.no_kill = true;
  if (begins_as(given, "kill-on-bad-exit", 1))
    found.kill_on_bad_exit = kills(equals == std::string_view::npos ? std::string_view{} : text.substr(equals + 1));
  if (name == "cpus-per-task") found.cpus_per_task = true;
  if (equals == std::string_view::npos) return name;
  read_value(name, text.substr(equals + 1), found);
  return {};
}

}  // namespace

CommandLine read_command_line(std::span<const std::string> arguments) {
  CommandLine found;
  bool skip = true;           // the program's name, or the value of an option
  std::string_view value_of;  // the long option that it belongs to
  bool command = false;       // in the user's program
  for (const std::string& argument : arguments) {
    const std::string_view text = argument;
    if (skip) {
      read_value(value_of, text, found);
      skip = false;
    } else if (text == ":") {
      // Separates components; it may also stand where the first one's program would.
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
    // A stream would bring the library's locales into every process that loads the plugin.
    std::vector<std::string> list;
    const std::unique_ptr<FILE, decltype([](FILE* open) { std::fclose(open); })> file(
        std::fopen("/proc/self/cmdline", "re"));
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

namespace {

using namespace std::string_view_literals;

/// The part of a launcher's command line that concerns libddp.
struct LauncherCall {
  std::string name;  ///< "accelerate launch"
  std::string python = "python";
  std::span<const std::string> arguments;  ///< after the name
  bool torchruns = false;
};

constexpr std::array kTorchModules{"torch.distributed.run"sv, "torch.distributed.launch"sv};
constexpr std::array kOtherModules{"accelerate.commands.launch"sv, "deepspeed.launcher.runner"sv,
                                   "deepspeed.launcher.launch"sv};
constexpr std::array kPrograms{"deepspeed"sv, "mpirun"sv,  "mpiexec"sv,    "mpiexec.hydra"sv,
                               "orterun"sv,   "prterun"sv, "horovodrun"sv, "torchrun"sv};

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

/// The command after "env" and its assignments.
std::span<const std::string> without_env(std::span<const std::string> command) {
  if (command.empty() || base_name(command.front()) != "env") return command;
  std::size_t at = 1;
  while (at < command.size() && !command[at].starts_with('-') && command[at].find('=') != std::string::npos) ++at;
  return command.subspan(at);
}

std::optional<LauncherCall> launcher_of_module(std::span<const std::string> command) {
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string_view word = command[i];
    if (!word.starts_with('-')) return std::nullopt;  // a script
    if (word == "-X" || word == "-W") ++i;
    if (!word.starts_with("-m")) continue;
    const std::size_t last = word == "-m" ? i + 1 : i;
    if (last >= command.size()) return std::nullopt;
    const std::string_view module = word == "-m" ? std::string_view{command[last]} : word.substr(2);
    const bool torch = contains(kTorchModules, module);
    if (!torch && !contains(kOtherModules, module)) return std::nullopt;
    return LauncherCall{.name = fmt::format("{} -m {}", base_name(command.front()), module),
                        .python = command.front(),
                        .arguments = command.subspan(last + 1),
                        .torchruns = torch};
  }
  return std::nullopt;
}

std::optional<LauncherCall> launcher_of(std::span<const std::string> command) {
  if (command.empty()) return std::nullopt;
  const std::string_view name = base_name(command.front());
  if (name.starts_with("python")) return launcher_of_module(command);
  if (name == "accelerate" && command.size() > 1 && command[1] == "launch")
    return LauncherCall{.name = "accelerate launch", .arguments = command.subspan(2)};
  if (!contains(kPrograms, name)) return std::nullopt;
  return LauncherCall{.name = std::string(name), .arguments = command.subspan(1), .torchruns = name == "torchrun"};
}

/// The value of a torchrun option, whose name may have dashes or underscores.
std::optional<std::string> value_of(std::span<const std::string> arguments, std::string_view option) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string word = arguments[i];
    if (!word.starts_with("--")) continue;
    const auto equals = word.find('=');
    std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '_', '-');
    if (name != option) continue;
    if (equals != std::string::npos) return word.substr(equals + 1);
    return i + 1 < arguments.size() ? arguments[i + 1] : std::string();
  }
  return std::nullopt;
}

/// "train.py ...", "-m package.train": the user's own words as far as the launcher's can be separated from them.
std::string program_words(std::span<const std::string> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const bool more = i + 1 < arguments.size();
    if (word == "-m" || word == "--module")
      return more ? "-m " + arguments[i + 1] + (i + 2 < arguments.size() ? " ..." : "") : "";
    if (!word.starts_with('-') && word.ends_with(".py")) return word + (more ? " ..." : "");
  }
  return {};
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool for_several_nodes(const LauncherCall& call, Lookup lookup) {
  auto nodes = value_of(call.arguments, "nnodes");
  if (!nodes) nodes = lookup("PET_NNODES");
  if (!nodes) return false;
  const std::string most = nodes->substr(nodes->find(':') + 1);
  return is_number(most) && most.find_first_not_of('0') != std::string::npos && most != "1";
}

bool names_a_meeting_place(const LauncherCall& call, Lookup lookup) {
  for (const char* option : {"rdzv-endpoint", "master-addr"})
    if (value_of(call.arguments, option)) return true;
  return std::any_of(call.arguments.begin(), call.arguments.end(),
                     [](const std::string& word) { return word == "--standalone"; }) ||
         lookup("PET_RDZV_ENDPOINT") || lookup("PET_MASTER_ADDR");
}

/// The first two bytes of a file; empty if unreadable.
std::string first_bytes(const std::string& path) {
  const base::UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  std::array<char, 2> bytes{};
  const ssize_t count = file ? ::read(file.get(), bytes.data(), bytes.size()) : 0;
  return count == static_cast<ssize_t>(bytes.size()) ? std::string(bytes.data(), bytes.size()) : std::string();
}

bool is_executable(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && (found.st_mode & 0111U) != 0;
}

bool is_in_path(std::string_view name, std::string_view path) {
  while (!path.empty()) {
    const auto colon = path.find(':');
    if (is_executable(fmt::format("{}/{}", path.substr(0, colon), name))) return true;
    path = colon == std::string_view::npos ? std::string_view{} : path.substr(colon + 1);
  }
  return false;
}

}  // namespace

std::optional<LauncherAdvice> advise_on_launcher(std::span<const std::string> command, Lookup lookup) {
  const auto call = launcher_of(without_env(command));
  if (!call) return std::nullopt;
  const std::string words = program_words(call->arguments);
  auto ranks = value_of(call->arguments, "nproc-per-node");
  if (!ranks) ranks = value_of(call->arguments, "num-gpus");
  const std::string number = ranks && is_number(*ranks) ? *ranks : "RANKS";
  const std::string program = words.empty() ? std::string("PROGRAM") : fmt::format("{} {}", call->python, words);
  LauncherAdvice advice{.hopeless = call->torchruns && for_several_nodes(*call, lookup) &&
                                    !names_a_meeting_place(*call, lookup)};
  advice.text = fmt::format(
      "{} starts ranks of its own, and --ddp has each task of the step start another one{}; write srun --ddp "
      "--ntasks-per-node={} {}, or ddprun --nproc-per-node={} {} without srun",
      call->name,
      advice.hopeless ? ", which waits for the other nodes at its own 127.0.0.1, as it names no --rdzv-endpoint" : "",
      number, program, number, words.empty() ? "PROGRAM" : words);
  return advice;
}

std::optional<std::string> advise_on_script(std::span<const std::string> command, const std::string& folder,
                                            const std::string& path) {
  if (command.empty()) return std::nullopt;
  const std::string& name = command.front();
  const bool python = name.ends_with(".py");
  if (!python && !name.ends_with(".sh")) return std::nullopt;
  if (name.find('/') == std::string::npos && is_in_path(name, path)) return std::nullopt;
  const std::string file = name.front() == '/' ? name : folder + "/" + name;
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return std::nullopt;
  std::string why;
  if ((found.st_mode & 0111U) == 0) {
    why = "it is not executable";
  } else if (const std::string begin = first_bytes(file); begin.size() == 2 && begin != "#!" &&
                                                          begin !=
                                                              "\x7f"
                                                              "E") {
    why = "it does not begin with '#!' and its interpreter";
  } else {
    return std::nullopt;
  }
  return fmt::format("{} cannot be started: {}; write srun --ddp ... {} {}{}", name, why, python ? "python" : "bash",
                     name, command.size() > 1 ? " ..." : "");
}

}  // namespace ddp::srun_plugin
