// Starts an agent on each host of a list, over ssh.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/process.hpp"
#include "base/unique_fd.hpp"
#include "launch/agent_settings.hpp"
#include "launch/host_words.hpp"
#include "launch/launch_role.hpp"
#include "options/launch_options.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

// What is said of the hosts of a list whose agents will not come: all in one line, hosts that failed in the same way
// together, so that a list with three dead hosts needs one attempt to mend, not three.

struct HostFailure {
  std::string host;
  std::string cause;  ///< may name the host
  std::string hint;   ///< what to do; empty: nothing is known
};

/// "starting ddprun on n1, n2: CAUSE; HINT; on n7: CAUSE; HINT", in the order of the list. @p failures is not empty.
std::string describe(std::span<const HostFailure> failures);

/// Whether the list means this host by @p host: its name, with or without domain, localhost, or one of its addresses.
/// Names are not looked up: a list may have thousands.
bool is_this_host(const std::string& host);

/// A host list of this host alone needs no agent: changes a frontend's role to LaunchRole::alone, and takes the number
/// of ranks from the list.
void settle_single_host(LaunchOptions& options, RoleDecision& role);

/// The program that starts agents: ssh's, or that of --agent-command.
const std::string& starter(const LaunchOptions& options);

/// The command line for @p host: of ssh without terminal and questions, or --agent-command.
/// @param ddprun the file to execute there
std::vector<std::string> agent_start_command(const LaunchOptions& options, const std::string& host,
                                             const std::string& ddprun);

/// What to do where ssh, or what stands for it, has ended with @p status, and has said @p last_line, before there was
/// an agent on @p host.
std::string hint_for_ssh_end(const LaunchOptions& options, const std::string& host, int status,
                             const std::string& last_line, const std::string& ddprun);

struct HostAgentLimits {
  std::size_t at_once = 64;  ///< hosts whose agents are being started at the same time
  /// From the start of ssh until the agent has joined: slow logins, and programs on a slow file system.
  std::chrono::milliseconds start = std::chrono::seconds(60);
  /// For the control connection of an agent to tell more than the end of its ssh does.
  std::chrono::milliseconds patience = std::chrono::seconds(1);
  /// From the first host without an agent until it is reported: others fail soon after, and are named with it.
  std::chrono::milliseconds gather = std::chrono::seconds(1);
};

/// Runs in the caller's event loop: after each turn of it, call time_passed(). Each ssh is in its own process group.
class HostAgents {
 public:
  struct Events {
    /// The agents of @p count hosts will not come. @return whether the job goes on without them
    std::function<bool(std::size_t count, const std::string& why)> missing;
    /// The ssh of an agent that had joined has ended.
    std::function<void(std::int64_t node, const std::string& why)> left;
  };

  /// Starts the first. @p common lacks node, ranks and here. @p loop must outlive the object. Throws Error and
  /// ExitError where there is no ssh, or no process can be made.
  HostAgents(stream::EventLoop& loop, const LaunchOptions& options, std::size_t num_hosts, std::string ddprun,
             const base::Environment& environment, AgentSettings common, Events events, HostAgentLimits limits = {});
  HostAgents& operator=(HostAgents&&) = delete;
  /// Ends what is left: SIGTERM, then SIGKILL.
  ~HostAgents();

  void joined(std::int64_t node);
  /// "ssh starts ddprun on n1, n2": those that have not joined.
  std::string awaited() const;
  std::optional<Deadline> next_deadline() const;
  void time_passed();

  /// Starts no more, and ends those that have not joined.
  void stop();
  /// Whether all that were started have ended.
  bool ended() const { return running_ == 0; }
  /// SIGTERM to the rest; SIGKILL at @p deadline.
  void end(Deadline deadline);
  /// Passes on what the ended ones had to say.
  void finish_words(Deadline deadline) { words_.finish(deadline); }

 private:
  enum class State { waiting, starting, joined, given_up, ended };
  struct Host {
    HostEntry entry;
    bool here = false;
    State state = State::waiting;
    base::ChildProcess process;
    base::UniqueFd input;
    std::string unsent;
    bool sending = false;           ///< input is watched
    std::optional<Deadline> limit;  ///< starting: to join; ended after it had joined: to tell
  };

  void start_more();
  void start(std::size_t index);
  void send_settings(Host& host);
  void leave_input(Host& host);
  void process_ended(std::size_t index);
  void give_up(std::size_t index, std::string cause, std::string hint);
  void report_failures();

  stream::EventLoop& loop_;
  const LaunchOptions& options_;
  std::string ddprun_;
  EnvironmentMap environment_;
  AgentSettings common_;
  Events events_;
  HostAgentLimits limits_;
  std::string ssh_path_;  ///< empty: all hosts are this one
  std::vector<Host> hosts_;
  HostWords words_;
  std::size_t next_ = 0;  ///< the first that was not started
  std::size_t starting_ = 0;
  std::size_t running_ = 0;
  std::map<std::size_t, HostFailure> failures_;  ///< by place in the list; not reported yet
  std::optional<Deadline> report_at_;
  bool stopped_ = false;
};

}  // namespace ddp::launcher
