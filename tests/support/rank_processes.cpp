#include "support/rank_processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include "base/env_table.hpp"
#include "base/errors.hpp"

namespace ddp::test {
namespace {

// In the child; any number that is free there.
constexpr int kPmiDescriptor = 100;

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

RankProcesses::RankProcesses(int world_size, const std::vector<std::string>& command,
                             const std::vector<std::string>& extra_environment, int memory_domains)
    : server_(FakePmiServer::Options{.world_size = world_size}), ranks_(static_cast<std::size_t>(world_size)) {
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<std::string> environment = extra_environment;
    environment.push_back("DDP_MEMORY_DOMAIN=" + std::to_string(rank % memory_domains));
    start(rank, command, std::move(environment));
  }
}

RankProcesses::~RankProcesses() {
  for (Rank& rank : ranks_) {
    if (rank.reaped) continue;
    ::kill(rank.pid, SIGKILL);
    ::waitpid(rank.pid, nullptr, 0);
  }
}

void RankProcesses::start(int rank, const std::vector<std::string>& command,
                          std::vector<std::string> extra_environment) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw base::system_error("starting a rank (pipe2)", errno);
  Rank& entry = ranks_[static_cast<std::size_t>(rank)];
  entry.output.reset(ends[0]);
  const base::UniqueFd write_end{ends[1]};
  const base::UniqueFd pmi = server_.take_client(rank);

  std::vector<std::string> environment;
  const auto own = base::Environment::process();
  for (const auto& [name, value] : own.variables()) {
    const bool launcher = name.starts_with("PMI") || name.starts_with("SLURM_") || name.starts_with("OMPI_") ||
                          name == "RANK" || name == "WORLD_SIZE";
    if (!launcher) environment.push_back(name + "=" + value);
  }
  environment.push_back("PMI_FD=" + std::to_string(kPmiDescriptor));
  environment.push_back("PMI_JOBID=77.0");
  environment.push_back("PMI_RANK=" + std::to_string(rank));
  environment.push_back("PMI_SIZE=" + std::to_string(ranks_.size()));
  std::move(extra_environment.begin(), extra_environment.end(), std::back_inserter(environment));
  std::vector<std::string> arguments = command;

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pmi.get(), kPmiDescriptor);
  const int status = posix_spawn(&entry.pid, command[0].c_str(), &actions, nullptr, pointers(arguments).data(),
                                 pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) {
    entry.reaped = true;
    throw base::system_error("starting " + command[0], status);
  }
}

void RankProcesses::signal(int rank, int number) const { ::kill(ranks_[static_cast<std::size_t>(rank)].pid, number); }

void RankProcesses::reap(Rank& rank) {
  if (rank.reaped) return;
  int status = 0;
  if (::waitpid(rank.pid, &status, WNOHANG) != rank.pid) return;
  rank.reaped = true;
  rank.result.ended = true;
  rank.result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  rank.result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  rank.result.lifetime = std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - started_);
}

void RankProcesses::collect(std::chrono::milliseconds limit) {
  std::vector<pollfd> entries;
  for (const Rank& rank : ranks_) entries.push_back({.fd = rank.output.get(), .events = POLLIN, .revents = 0});
  ::poll(entries.data(), entries.size(), static_cast<int>(limit.count()));
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (entries[i].revents != 0) {
      std::array<char, 65536> chunk;
      const ssize_t got = ::read(ranks_[i].output.get(), chunk.data(), chunk.size());
      if (got > 0) {
        ranks_[i].result.output.append(chunk.data(), static_cast<std::size_t>(got));
      } else {
        ranks_[i].output.reset();
      }
    }
    reap(ranks_[i]);
  }
}

bool RankProcesses::all_wrote(const std::string& text, Deadline deadline) {
  for (;;) {
    bool all = true;
    for (const Rank& rank : ranks_) all = all && rank.result.output.find(text) != std::string::npos;
    if (all) return true;
    if (deadline.expired()) return false;
    collect(std::chrono::milliseconds(20));
  }
}

std::vector<RankResult> RankProcesses::wait(Deadline deadline, std::optional<int> except) {
  for (;;) {
    bool all = true;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (except && static_cast<std::size_t>(*except) == i) continue;
      all = all && ranks_[i].reaped && !ranks_[i].output;
    }
    if (all || deadline.expired()) break;
    collect(std::chrono::milliseconds(20));
  }
  std::vector<RankResult> results;
  for (Rank& rank : ranks_) {
    if (!rank.reaped) {
      ::kill(rank.pid, SIGKILL);
      ::waitpid(rank.pid, nullptr, 0);
      rank.reaped = true;
    }
    results.push_back(rank.result);
  }
  return results;
}

}  // namespace ddp::test
