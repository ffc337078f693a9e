#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/process.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "command/output.hpp"
#include "output.hpp"

namespace ddp::tools {

void write_standard_output(std::string_view text) {
  // Through the descriptor: stdio reports a late error only at exit, unnoticed.
  if (const int number = base::write_all(STDOUT_FILENO, text); number != 0) {
    throw base::system_error("writing to standard output", number);
  }
}

namespace {

constexpr std::size_t kLongest = std::size_t{64} * 1024;

}  // namespace

ProgramOutput run_program(const ProgramRun& run, Deadline deadline) {
  const std::string& name = run.command.front();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return {.status = -1, .text = base::system_error(fmt::format("starting {} (pipe)", name), errno).what()};
  const base::UniqueFd output{ends[0]};
  base::UniqueFd input{ends[1]};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  if (run.errors) {
    ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDERR_FILENO);
  } else {
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  }
  std::vector<char*> words;
  for (const std::string& word : run.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  char* nothing[] = {nullptr};
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, words.front(), &actions, nullptr, words.data(), run.clean ? nothing : ::environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return {.status = -1, .text = base::system_error(fmt::format("starting {}", name), error).what()};
  base::ChildProcess child{pid};
  input.reset();
  ProgramOutput result;
  while (result.text.size() < kLongest && base::wait_for(output.get(), POLLIN, deadline)) {
    std::array<char, 4096> block{};
    const ssize_t count = ::read(output.get(), block.data(), block.size());
    if (count > 0) {
      result.text.append(block.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      break;
    }
  }
  if (child.wait(deadline)) {
    result.status = child.end().value_or(base::ProcessEnd{}).shell_status();
  } else {
    result.text = fmt::format("{} did not end in time", name);
  }
  return result;
}

}  // namespace ddp::tools
