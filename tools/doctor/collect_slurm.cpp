// Which Slurm a node has.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "base/child_process.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "doctor/collect.hpp"

extern char** environ;

namespace ddp::tools::doctor {
namespace {

/// The first line that `srun --version` writes; empty where it cannot be run.
std::string ask_srun(Deadline deadline) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  const base::UniqueFd output{ends[0]};
  base::UniqueFd input{ends[1]};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string name = "srun";
  std::string option = "--version";
  char* const words[] = {name.data(), option.data(), nullptr};
  pid_t pid = -1;
  const int status = ::posix_spawnp(&pid, "srun", &actions, nullptr, words, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (status != 0) return {};
  base::ChildProcess process{pid};  // killed where it does not end
  input.reset();
  std::string text;
  while (text.find('\n') == std::string::npos && base::wait_for(output.get(), POLLIN, deadline)) {
    std::array<char, 256> block{};
    const ssize_t count = ::read(output.get(), block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(block.data(), static_cast<std::size_t>(count));
  }
  process.wait(deadline);
  return text.substr(0, text.find('\n'));
}

}  // namespace

void collect_slurm(NodeFacts& node, const base::Environment& environment, Deadline deadline) {
  if (!environment.has("SLURM_JOB_ID")) return;
  const std::string line = ask_srun(deadline);  // "slurm-wlm 22.05.8"
  const auto begin = line.find_last_of(' ');
  constexpr std::string_view kLetters = "0123456789.";
  if (begin == std::string::npos || begin + 1 == line.size()) return;
  const std::string_view version = std::string_view(line).substr(begin + 1);
  node.slurm_version = version.substr(0, version.find_first_not_of(kLetters));
}

}  // namespace ddp::tools::doctor
