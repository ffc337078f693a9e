#include "step_program/before_command.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/log.hpp"

namespace ddp::srun_plugin {
namespace {

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

}  // namespace

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

}  // namespace ddp::srun_plugin
