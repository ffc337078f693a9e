#include "program_check.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include <fmt/format.h>

#include "base/unique_fd.hpp"

namespace ddp::srun_plugin {
namespace {

using namespace std::string_view_literals;

/// What a launcher's command line says that concerns libddp.
struct LauncherCall {
  std::string name;  ///< "accelerate launch"
  std::string python = "python";
  std::span<const std::string> arguments;  ///< behind the name
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

/// "env", and what it sets for the program.
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

/// The value of an option of torchrun, whose names have dashes or underscores.
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

/// "train.py ...", "-m package.train": the user's own words as far as they can be told from the launcher's.
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

/// The first two bytes of a file; empty where they cannot be read.
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
  LauncherAdvice advice{
      .text = {},
      .hopeless = call->torchruns && for_several_nodes(*call, lookup) && !names_a_meeting_place(*call, lookup)};
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
