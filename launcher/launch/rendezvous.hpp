// How the agents of several nodes find the coordinator, and prove that they belong to the job.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "control/handshake.hpp"
#include "launch/launch_role.hpp"
#include "launch/rendezvous_proof.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// One process's side: it either leads, and agents connect to the listener, or connects.
struct Rendezvous {
  std::unique_ptr<control::Listener> listener{};  ///< set where the coordinator runs
  std::vector<std::string> addresses{};           ///< of the coordinator
  std::uint16_t port = 0;
  control::Provers provers{};  ///< for connect()
  std::int64_t order = -1;     ///< for control::Hello
  std::string host{};          ///< as RendezvousPoint's
  Deadline deadline;           ///< to reach the coordinator
  /// Of this process where it should lead, but the port is taken; else empty.
  std::string port_taken{};
  /// Of a job whose agents have one in private; others have only their user's proof.
  std::optional<control::Secret> secret{};

  /// As an agent; says what it waits for where that takes long. Throws like control::connect().
  /// @param remark on why the coordinator is perhaps not reached; may be empty
  control::Connection connect(const std::string& remark = {}) const;
};

/// For a frontend, which leads: it gives its agents the point.
struct FrontendRendezvous {
  std::unique_ptr<control::Listener> listener{};
  RendezvousPoint point;
};
/// @param addresses of this host: where it listens, and what the agents are told
FrontendRendezvous meet_as_frontend(const std::vector<std::string>& addresses);
/// Reads kAgentVariable; the order is SLURM_PROCID, or the place in the host list.
Rendezvous meet_as_frontend_agent(const base::Environment& environment, Deadline deadline);
/// Task 0 leads, listens at its @p addresses and publishes its point over the step's PMI. The exchange runs in a child
/// process: this one will be a PMIx server and must not be a client. Throws Error: timeout (with the tasks that did not
/// arrive), unavailable.
Rendezvous meet_in_step(const RoleDecision& role, const base::Environment& environment,
                        const std::vector<std::string>& addresses, Deadline deadline);
/// The task of another engine than Slurm that this process is, with what only its PMIx says (PRRTE), by a child
/// process. Throws Error where that does not answer.
std::optional<base::EngineTask> task_of_engine(const base::Environment& environment, Deadline deadline);
/// --rdzv-endpoint or --master-addr: the agent on that host leads, and listens at that address alone. As the job has no
/// private channel, they prove themselves as RendezvousProof says. Throws Error: system when the port is in use,
/// invalid_argument when this agent must lead and the address is another host's, unavailable when it cannot prove
/// itself. @param began when the time to reach the coordinator begins
Rendezvous meet_at_endpoint(const LaunchOptions& options, const base::Environment& environment,
                            Deadline::Clock::time_point began = Deadline::Clock::now());

}  // namespace ddp::launcher
