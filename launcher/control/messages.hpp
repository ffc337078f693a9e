// What agents and the coordinator tell each other, and an agent and its attempt process: the control protocol.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <ddp/bytes.hpp>

namespace ddp::launcher::control {

/// Agents and coordinator must agree on it exactly; it changes with every change of a message.
inline constexpr int kProtocolVersion = 2;

// ---- agent to coordinator ----------------

/// An address of a node's network interface (topology::InterfaceCandidate).
struct Interface {
  std::string name;  ///< "eth0"
  std::string address;
  int prefix_length = 0;
  bool ipv6 = false;
  bool fabric = false;
  bool routes_to_peers = false;
  std::int64_t rate_mbps = 0;
  bool operator==(const Interface&) const = default;
};

/// An agent wants to take part.
struct Hello {
  std::string version;  ///< of libddp: must be the coordinator's
  std::string run_id;
  std::string host;
  std::vector<std::string> addresses;  ///< numeric, on which other nodes may reach it, best first
  std::int64_t order = -1;             ///< SLURM_NODEID or --node-rank; -1: any
  int nproc = 0;
  std::string role;
  std::string program;  ///< script, module or program, as the user wrote it
  std::int64_t pid = 0;
  std::vector<Interface> interfaces{};  ///< that may carry what ranks send each other, best first; may be empty
  bool operator==(const Hello&) const = default;
};

/// The agent's attempt process is there; at the store's host, with its port.
struct AttemptPrepared {
  int attempt = 0;
  int store_port = 0;  ///< 0: this agent does not serve the store
  bool operator==(const AttemptPrepared&) const = default;
};

struct RanksStarted {
  int attempt = 0;
  std::vector<std::int64_t> pids;  ///< by local rank
  bool operator==(const RanksStarted&) const = default;
};

/// The agent could not start (all of) its ranks, or has lost them; none of them is left.
struct AttemptFailed {
  int attempt = 0;
  std::string message;
  int exit_status = 1;
  bool may_recover = false;  ///< another attempt may go better
  bool operator==(const AttemptFailed&) const = default;
};

struct RankEnded {
  int attempt = 0;
  int local_rank = 0;
  int code = 0;
  bool by_signal = false;
  bool core_dumped = false;
  std::int64_t time_ns = 0;  ///< wall clock, since 1970
  std::string error_file{};  ///< this and the next three: RankTraces, for failures
  std::string error_content{};
  std::string stderr_tail{};
  std::string oom{};
  bool operator==(const RankEnded&) const = default;
};

struct RankAborted {
  int attempt = 0;
  int local_rank = 0;
  int status = 0;
  std::string message;
  bool operator==(const RankAborted&) const = default;
};

/// signal 0: it goes on.
struct RankStopped {
  int attempt = 0;
  int local_rank = 0;
  int signal = 0;
  bool operator==(const RankStopped&) const = default;
};

/// All processes of the attempt on this node are gone.
struct AttemptCleaned {
  int attempt = 0;
  int left_behind = 0;  ///< processes that ranks had detached and that were ended
  bool operator==(const AttemptCleaned&) const = default;
};

/// A signal to the agent itself.
struct SignalReceived {
  int signal = 0;
  bool by_slurm = false;  ///< slurmstepd has sent it, to the tasks of the step or to all processes below them
  bool operator==(const SignalReceived&) const = default;
};

// ---- coordinator to agent ----------------

struct NodeLayout {
  std::string host;
  int nproc = 0;
  std::string role;
  std::vector<std::string> addresses;  ///< of Hello
  std::string socket_interface{};      ///< what its ranks use between nodes; empty: nothing was chosen
  std::string socket_reason{};         ///< one sentence
  bool operator==(const NodeLayout&) const = default;
};

/// The job as all agents shall see it: ranks of a node are consecutive, nodes in the order of the list.
struct PrepareAttempt {
  int attempt = 0;
  int max_restarts = 0;
  int node_rank = 0;  ///< the receiver's position in nodes
  bool serve_store = false;
  std::string run_id;
  std::string name_space;     ///< PMIx namespace of this attempt
  std::string log_suffix;     ///< random, the same for all nodes and attempts
  bool terminal_out = false;  ///< what agents print on standard output comes to a terminal, though theirs is none
  bool terminal_err = false;  ///< the same for standard error
  std::vector<NodeLayout> nodes;
  bool operator==(const PrepareAttempt&) const = default;
};

/// Everybody is prepared. The receiver uses the first address that answers.
struct StartAttempt {
  int attempt = 0;
  std::vector<std::string> store_addresses;
  int store_port = 0;
  bool operator==(const StartAttempt&) const = default;
};

struct SignalRanks {
  int attempt = 0;
  bool groups = false;  ///< process groups of the ranks, else the ranks' processes only
  int signal = 0;
  bool may_have_reached_ranks = false;  ///< Slurm has sent it to the agents, and perhaps to the ranks, too
  bool operator==(const SignalRanks&) const = default;
};

/// How long slow consoles may take at the end of an attempt, in all.
inline constexpr std::chrono::minutes kDrainTime{10};
/// After a signal or --timeout, or when the coordinator is lost: Slurm's KillWait is 30 s for everything.
inline constexpr std::chrono::seconds kUrgentDrainTime{10};
/// For a console that takes nothing, which may be a pager.
inline constexpr std::chrono::seconds kStallLimit{60};

/// All ranks have ended on all nodes, or were given up: remove what is left. Sent again when the drain time shrinks.
struct EndAttempt {
  int attempt = 0;
  int drain_ms = 0;  ///< for slow consoles, from now on
  bool operator==(const EndAttempt&) const = default;
};

/// The last message: the agent ends with this exit status. A refused Hello is answered with it too.
struct Finish {
  int exit_status = 0;
  std::string message;  ///< to be printed by the agent when not empty
  bool operator==(const Finish&) const = default;
};

// ---- both ways ----------------

/// PMIx fence across nodes: contributions go to the coordinator, which gives each participant all of them.
struct Fence {
  int attempt = 0;
  std::vector<int> ranks;  ///< global ranks that take part; empty: all
  Bytes data;              ///< contribution of one node; in the answer, all contributions one after the other
  int status = 0;          ///< of the answer: a PMIx status
  bool operator==(const Fence&) const = default;
};

/// PMIx direct modex: what rank `rank` has put.
struct ModexRequest {
  int attempt = 0;
  std::int64_t id = 0;  ///< chosen by the asking agent
  int from_node = -1;   ///< set by the coordinator when it passes the question on
  int rank = 0;
  bool operator==(const ModexRequest&) const = default;
};
struct ModexReply {
  int attempt = 0;
  std::int64_t id = 0;
  int to_node = -1;
  int status = 0;  ///< a PMIx status
  Bytes data;
  bool operator==(const ModexReply&) const = default;
};

using Message = std::variant<Hello, AttemptPrepared, RanksStarted, AttemptFailed, RankEnded, RankAborted, RankStopped,
                             AttemptCleaned, SignalReceived, PrepareAttempt, StartAttempt, SignalRanks, EndAttempt,
                             Finish, Fence, ModexRequest, ModexReply>;

/// As CBOR (RFC 8949): a map with the message's name under "is" and its fields.
Bytes encode(const Message& message);

/// Throws Error(protocol) for anything that encode() does not make: unknown names, missing fields, wrong types, numbers
/// out of range. Unknown fields are ignored.
Message decode(std::span<const std::byte> bytes);

/// "RankEnded", for logs.
const char* name_of(const Message& message);

}  // namespace ddp::launcher::control
