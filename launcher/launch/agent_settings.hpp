// What an agent that is started over ssh gets from its frontend, on its standard input: nothing of it is on a command
// line, and the secret is in no environment that others could read.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "base/message_fields.hpp"
#include "options/host_list.hpp"
#include "workers/worker_environment.hpp"

namespace ddp::launcher {

/// The only argument of such an agent.
inline constexpr const char* kAgentWord = "--agent-from-stdin";
inline constexpr const char* kReadingSettings = "reading what the frontend's ddprun sends on standard input";

struct AgentSettings {
  std::string point;                     ///< RendezvousPoint::encode()
  int node = 0;                          ///< place in the host list
  int ranks = 0;                         ///< 0: as the arguments say
  bool here = false;                     ///< on the frontend's host
  mode_t file_mask = 022;                ///< umask(2)
  std::string directory;                 ///< to work in
  std::vector<std::string> arguments{};  ///< of the frontend
  EnvironmentMap environment;            ///< without what belongs to the frontend's host
};
constexpr auto description(const AgentSettings*) {
  return base::describe({"settings from the frontend's ddprun"},
                        base::fields<&AgentSettings::point, &AgentSettings::here, &AgentSettings::directory,
                                     &AgentSettings::arguments, &AgentSettings::environment>(),
                        base::fields<&AgentSettings::node>(base::Rule{.least = 0, .most = kMaxNodes - 1}),
                        base::fields<&AgentSettings::ranks>(base::Rule{.least = 0, .most = kMaxRanksPerNode}),
                        base::fields<&AgentSettings::file_mask>(base::Rule{.most = 0777}));
}

/// A line with @p version and the length of the rest, then the message.
std::string encode(const AgentSettings& settings, std::string_view version);

/// Whether a variable says something of the host or the login that has it (HOME, SSH_*, DISPLAY, ...); an agent keeps
/// its own.
bool belongs_to_host(std::string_view name);

/// SLURM_JOB_ID and the like.
bool is_slurms(std::string_view name);

/// What goes to other hosts: without such variables, a task's identity, and Slurm's.
EnvironmentMap portable_environment(const base::Environment& environment);

/// What is the same for all agents: this process's folder, by the name that the user gave it, umask and environment.
AgentSettings settings_for_agents(std::string point, std::vector<std::string> arguments,
                                  const base::Environment& environment);

/// Of a pipe or a file. Throws Error: timeout, protocol, and conflict for a frontend of another version than @p
/// version.
/// @param attempted of these errors
AgentSettings read_agent_settings(int fd, std::string_view version, Deadline deadline,
                                  const std::string& attempted = kReadingSettings);

/// What an agent's process, whose own variables are @p own, takes over: all but what belongs to its host.
EnvironmentMap environment_of_agent(const AgentSettings& settings, const EnvironmentMap& own);

/// The frontend's umask and folder. Throws Error(system) where the folder cannot be entered.
void enter_folder(const AgentSettings& settings);

/// Makes this process the agent: environment, umask, folder. It ends when standard input does, which the frontend keeps
/// open until it has joined. With a single thread. Throws Error(system) where the folder cannot be entered.
void take_agent_settings(const AgentSettings& settings);

/// For an agent that has reached its frontend: from now on standard input is /dev/null. Throws Error(system).
void leave_standard_input();

}  // namespace ddp::launcher
