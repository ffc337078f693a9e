// The control protocol: the messages between agents and the coordinator, and between an agent and its attempt process.
// Those of one attempt carry its epoch, which exposes late messages of another.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ddp/bytes.hpp>

#include "diagnostics/metrics/metrics_page.hpp"
#include "outcome/job_outcome.hpp"

namespace ddp::base {
class ByteReader;
class ByteWriter;
}  // namespace ddp::base

namespace ddp::launcher::control {

/// The same on both sides of a connection; it changes with every change of a message.
inline constexpr int kProtocolVersion = 20;

// ---- agent to coordinator ----------------

/// An address of a node's network interface (topology::InterfaceCandidate).
struct Interface {
  std::string name{};  ///< "eth0"
  std::string address{};
  int prefix_length = 0;
  bool ipv6 = false;
  bool fabric = false;
  bool routes_to_peers = false;
  std::int64_t rate_mbps = 0;
  bool operator==(const Interface&) const = default;
};

/// An agent asks to join.
struct Hello {
  std::string version{};  ///< of libddp: must be the coordinator's
  std::string run_id{};
  std::string host{};
  std::vector<std::string> addresses{};  ///< numeric, where other nodes may reach it, best first
  std::int64_t order = -1;               ///< SLURM_PROCID or --node-rank; -1: any
  int nproc = 0;
  std::string role{};
  std::string program{};  ///< script, module or program, as the user wrote it
  std::int64_t pid = 0;
  std::vector<Interface> interfaces{};  ///< candidates for the ranks' traffic, best first; may be empty
  std::string allocation{};             ///< Slurm's job, of an agent that a frontend started in it; else empty
  std::string slurm_node{};             ///< its name there (SLURMD_NODENAME)
  std::vector<std::string> settings{};  ///< as MembershipRules::settings, those that its user has given
  bool warms = false;                   ///< while it has no ranks it makes interpreters ready: WarmWorkersReady follows
  bool operator==(const Hello&) const = default;
};

/// A ddprun that is about to start agents in another allocation, whose nodes are to join. It stays connected until they
/// have ended; SignalReceived from it lets them all leave.
struct AllocationHello {
  std::string allocation{};  ///< Slurm's job
  std::string host{};
  std::int64_t pid = 0;
  bool operator==(const AllocationHello&) const = default;
};

/// ddp-info resize, a process of the job's user: other nodes are to take part. The answer is Finish.
struct ResizeAsked {
  int nodes = 0;        ///< so many; 0: as before
  int spares = -1;      ///< so many besides; more leave; -1: as before
  std::string drain{};  ///< without this host's; empty: none
  std::string host{};   ///< of the process
  bool operator==(const ResizeAsked&) const = default;
};

/// Follows Hello, from an agent of `srun --ddp`, whose ranks are tasks that Slurm starts and ends.
struct StepTasks {
  std::string node_list{};            ///< of the step, as Slurm writes it
  int world_size = 0;                 ///< of the step
  std::vector<std::int64_t> ranks{};  ///< of this node, by local rank
  bool operator==(const StepTasks&) const = default;
};

/// The agent's attempt process is ready for StartAttempt.
struct AttemptPrepared {
  int epoch = 0;
  int store_port = 0;       ///< 0: this agent does not serve the store
  std::string store_key{};  ///< for the nodes' witnesses (store_server::StoreKey); empty: there is one node
  bool operator==(const AttemptPrepared&) const = default;
};

struct RanksStarted {
  int epoch = 0;
  std::vector<std::int64_t> pids{};  ///< by local rank
  std::string description{};         ///< --dry-run: what the ranks would be, for the job's console
  bool operator==(const RanksStarted&) const = default;
};

/// The agent could not start all of its ranks, or has lost them; none is left.
struct AttemptFailed {
  int epoch = 0;
  std::string message{};
  int exit_status = 1;
  bool may_recover = false;  ///< another attempt may succeed
  bool operator==(const AttemptFailed&) const = default;
};

struct RankEnded {
  int epoch = 0;
  int local_rank = 0;
  RankEnd end{};
  RankTraces traces{};  ///< of failures
  bool operator==(const RankEnded&) const = default;
};

struct RankAborted {
  int epoch = 0;
  int local_rank = 0;
  AbortCall call{};
  bool operator==(const RankAborted&) const = default;
};

/// By SIGSTOP or its like; signal 0: it was resumed.
struct RankStopped {
  int epoch = 0;
  int local_rank = 0;
  int signal = 0;
  bool operator==(const RankStopped&) const = default;
};

/// All of the attempt's processes on this node are gone.
struct AttemptCleaned {
  int epoch = 0;
  std::vector<std::string> store_refusals{};  ///< as in JobOutcome
  bool operator==(const AttemptCleaned&) const = default;
};

/// ConsolePiece::writer of whole lines, which have their prefixes and newlines in the text.
inline constexpr int kWholeLines = 0;

/// What a node's ranks have written to the job's console, in the order in which it is to appear there.
struct ConsolePiece {
  int writer = 0;           ///< distinguishes the node's streams
  bool unprefixed = false;  ///< bytes as the rank wrote them; else lines after their prefixes, as LinePiece
  bool begins = true;
  bool ends = true;
  bool overwritten = false;
  std::string prefix{};
  std::string text{};
  bool operator==(const ConsolePiece&) const = default;
};
struct ConsoleOutput {
  int epoch = 0;
  bool error = false;  ///< standard error
  std::vector<ConsolePiece> pieces{};
  bool operator==(const ConsoleOutput&) const = default;
};

using RankProgress = diagnostics::StepProgress;
/// At intervals of PrepareAttempt::progress_ms, for ranks that have taken steps.
struct Progress {
  int epoch = 0;
  std::vector<RankProgress> ranks{};
  bool operator==(const Progress&) const = default;
};

/// A signal to the agent itself.
struct SignalReceived {
  int signal = 0;
  bool by_slurm = false;  ///< from slurmstepd, to the step's tasks or to all processes below them
  bool operator==(const SignalReceived&) const = default;
};

/// The interpreters for the next ranks have imported their modules, as far as they can (--warm-workers). From the
/// standby process to its agent, and from there to the coordinator.
struct WarmWorkersReady {
  bool all = false;  ///< else some could not be started
  bool operator==(const WarmWorkersReady&) const = default;
};

/// Rank 0 has read this much more of its Input.
struct InputTaken {
  std::int64_t bytes = 0;
  bool operator==(const InputTaken&) const = default;
};

// ---- coordinator to agent ----------------

struct NodeLayout {
  std::string host{};
  int nproc = 0;
  std::string role{};
  std::vector<std::string> addresses{};  ///< of Hello; only of the first node, where the others look for the store
  std::string socket_interface{};        ///< of its ranks' traffic between nodes; empty: none chosen
  std::string socket_reason{};           ///< one sentence
  bool operator==(const NodeLayout&) const = default;
};

/// By node rank. Compact on the wire (node_list.cpp): layouts that nodes share go once, names of hosts as ranges.
struct NodeList : std::vector<NodeLayout> {
  using std::vector<NodeLayout>::vector;
  NodeList(std::vector<NodeLayout> nodes) : vector(std::move(nodes)) {}  // NOLINT(google-explicit-constructor)
};
void write_value(base::ByteWriter& out, const NodeList& nodes);
/// Refuses more than 65,536 nodes or 128 MiB of layouts, which may come in few bytes.
void read_value(base::ByteReader& in, NodeList& nodes);

/// The job as all agents see it: ranks of a node are consecutive, nodes in the order of the list.
struct PrepareAttempt {
  int epoch = 0;
  int restart_count = 0;  ///< for the ranks: TORCHELASTIC_RESTART_COUNT
  int max_restarts = 0;
  int node_rank = 0;  ///< the receiver's position in nodes
  bool serve_store = false;
  std::string run_id{};
  std::string name_space{};   ///< PMIx namespace of this attempt
  std::string log_name{};     ///< of the folders of log files, before log_suffix: --rdzv-id or Slurm's job
  std::string log_suffix{};   ///< random, the same for all nodes and attempts
  bool terminal_out = false;  ///< agents' standard output ends up on a terminal, though it is not one itself
  bool terminal_err = false;  ///< the same for standard error
  /// The coordinator writes what ranks write to the console: a node may be ahead of it by so many bytes of each stream.
  /// 0: the agent writes to its own standard streams.
  std::int64_t console_window_bytes = 0;
  /// How long ranks must stall for RanksStill; 0: they are not watched.
  std::int64_t still_after_ms = 0;
  int nodes_lost = 0;            ///< in earlier attempts
  bool input = false;            ///< the receiver's rank 0 gets Input
  std::int64_t progress_ms = 0;  ///< between two messages Progress; 0: none wanted
  bool elastic = false;          ///< a later attempt may have other nodes
  /// How long ranks may take to end for the leave of the receiver's node, before they get SIGTERM.
  std::int64_t leave_grace_ms = 0;
  NodeList nodes{};  ///< sent last
  bool operator==(const PrepareAttempt&) const = default;
};

/// More of the frontend's standard input, for rank 0 of this attempt or a later one. The next follows when it has been
/// read.
struct Input {
  Bytes data{};
  bool end = false;
  bool operator==(const Input&) const = default;
};

/// All nodes are prepared. The receiver uses the first address that answers.
struct StartAttempt {
  int epoch = 0;
  std::vector<std::string> store_addresses{};
  int store_port = 0;
  std::string store_key{};  ///< of AttemptPrepared
  bool operator==(const StartAttempt&) const = default;
};

struct SignalRanks {
  int epoch = 0;
  bool groups = false;  ///< the ranks' process groups, else only their processes
  int signal = 0;
  bool may_have_reached_ranks = false;  ///< Slurm has sent it to the agents, and perhaps to the ranks
  bool operator==(const SignalRanks&) const = default;
};

/// SIGKILL to the process groups of some ranks, which hang; their ends follow.
struct KillRanks {
  int epoch = 0;
  std::vector<int> local_ranks{};
  bool operator==(const KillRanks&) const = default;
};

/// The console has taken more messages of ConsoleOutput, or has lost its reader.
struct ConsoleTaken {
  int epoch = 0;
  bool error = false;  ///< those of standard error
  std::int64_t messages = 0;
  bool operator==(const ConsoleTaken&) const = default;
};

/// Total time for slow consoles at the end of an attempt.
inline constexpr std::chrono::minutes kDrainTime{10};
/// After a signal or --timeout, or when the coordinator is lost: Slurm's KillWait is 30 s for everything.
inline constexpr std::chrono::seconds kUrgentDrainTime{10};
/// For a console that accepts nothing, which may be a pager.
inline constexpr std::chrono::seconds kStallLimit{60};

/// All ranks have ended on all nodes, or were given up: remove what is left. Sent again when the drain time shrinks.
struct EndAttempt {
  int epoch = 0;
  int drain_ms = 0;  ///< for slow consoles, from now on
  bool operator==(const EndAttempt&) const = default;
};

/// Answer to AllocationHello, and to the Hello of an agent that comes while the job runs.
struct JoinTaken {
  bool spare = false;        ///< all places are taken; it waits for one
  std::int64_t rest_ms = 0;  ///< it waits at least so long, because its host was lost again and again
  bool operator==(const JoinTaken&) const = default;
};

/// Which nodes are to take part may change: what ranks and metrics may ask.
struct NodesChange {
  int epoch = 0;
  bool pending = false;  ///< the ranks are to end for it
  int waiting = 0;       ///< nodes that have joined and take no part
  bool operator==(const NodesChange&) const = default;
};

/// For Slurm, which ends what is left on a node with its last rank: RankEnded has arrived.
struct RankEndNoted {
  int epoch = 0;
  int local_rank = 0;
  bool operator==(const RankEndNoted&) const = default;
};

/// The last message: the agent exits with this status. Also the answer to a refused Hello.
struct Finish {
  int exit_status = 0;
  std::string message{};  ///< printed by the agent unless empty
  bool operator==(const Finish&) const = default;
};

// ---- both ways ----------------

/// For so long an answer to FindAbsent serves all that ask the same: ranks reach the deadline of a fence one by one.
inline constexpr std::chrono::milliseconds kAbsentFresh{1000};

/// A PMIx fence across nodes: contributions go to the coordinator, which answers each participant with all of them.
struct Fence {
  int epoch = 0;
  std::vector<int> ranks{};  ///< participants' global ranks; empty: all
  Bytes data{};              ///< one node's contribution; in the answer, all contributions in the order of the nodes
  int status = 0;            ///< PMIx status of the answer
  bool operator==(const Fence&) const = default;
};

/// PMIx direct modex: requests the data of rank `rank`.
struct ModexRequest {
  int epoch = 0;
  std::int64_t id = 0;  ///< chosen by the asking agent
  int from_node = -1;   ///< set by the coordinator when it forwards the request
  int rank = 0;
  bool operator==(const ModexRequest&) const = default;
};
struct ModexReply {
  int epoch = 0;
  std::int64_t id = 0;
  int to_node = -1;
  int status = 0;  ///< PMIx status
  Bytes data{};
  bool operator==(const ModexReply&) const = default;
};

/// Asks which ranks have not put the PMIx value of this name, by which ranks show that they are in a fence: a node asks
/// the coordinator, which asks the nodes that are not in the fence.
struct FindAbsent {
  int epoch = 0;
  std::string name{};
  int limit_ms = 0;  ///< from now on
  bool operator==(const FindAbsent&) const = default;
};
/// Consecutive ranks.
struct RankRange {
  int first = 0;
  int count = 0;
  bool operator==(const RankRange&) const = default;
};
/// The answer, in ascending order: from a node its own ranks, from the coordinator all of the job.
struct AbsentFound {
  int epoch = 0;
  std::string name{};
  std::vector<RankRange> ranks{};
  bool operator==(const AbsentFound&) const = default;
};

/// The sender is about to stop itself (Ctrl-Z): it sends nothing until it continues.
struct Resting {
  bool rests = false;
  bool operator==(const Resting&) const = default;
};

// ---- hangs ----------------

/// All of the node's ranks have stalled, or one progresses again.
struct RanksStill {
  int epoch = 0;
  bool still = false;
  bool operator==(const RanksStill&) const = default;
};

/// The coordinator asks what all ranks of a node are doing.
struct ObserveRanks {
  int epoch = 0;
  int limit_ms = 0;  ///< from now on
  bool operator==(const ObserveRanks&) const = default;
};

/// The answer, with global ranks.
struct RanksObserved {
  int epoch = 0;
  Bytes facts{};  ///< diagnostics::HostFacts
  bool operator==(const RanksObserved&) const = default;
};

// ---- stacks ----------------

/// The coordinator asks for the stacks of all ranks of a node; RanksObserved comes before them.
struct CollectStacks {
  int epoch = 0;
  int limit_ms = 0;  ///< from now on
  bool operator==(const CollectStacks&) const = default;
};

/// The answer, with local ranks.
struct StacksCollected {
  int epoch = 0;
  std::vector<StackGroup> groups{};
  std::vector<StackNote> notes{};
  bool operator==(const StacksCollected&) const = default;
};

/// A message as its bytes: as it came, for a process that only forwards it; or encoded once, for many connections,
/// which share the bytes. encode() gives them, decode() never makes one. @p bytes is never null.
struct Encoded {
  std::shared_ptr<const Bytes> bytes = std::make_shared<const Bytes>();
  std::shared_ptr<const Bytes> rest{};  ///< follows them; null: nothing does
  std::size_t size() const { return bytes->size() + (rest ? rest->size() : 0); }
  bool operator==(const Encoded& other) const;
};

using Message = std::variant<Hello, AttemptPrepared, RanksStarted, AttemptFailed, RankEnded, RankAborted, RankStopped,
                             AttemptCleaned, SignalReceived, PrepareAttempt, StartAttempt, SignalRanks, EndAttempt,
                             Finish, Fence, ModexRequest, ModexReply, CollectStacks, StacksCollected, ConsoleOutput,
                             ConsoleTaken, RanksStill, ObserveRanks, RanksObserved, Progress, Resting, Input,
                             InputTaken, StepTasks, RankEndNoted, JoinTaken, NodesChange, AllocationHello, ResizeAsked,
                             KillRanks, FindAbsent, AbsentFound, WarmWorkersReady, Encoded>;

/// One byte for the kind, then the fields in the order of message_fields.hpp: little-endian integers; texts, bytes and
/// lists behind a 32-bit length; times as nanoseconds since 1970.
Bytes encode(const Message& message);

/// As encode(), for a message to several connections, which share the bytes.
Encoded encode_once(const Message& message);
/// The same for plans that differ in all but their nodes: they share @p nodes, from encode_nodes(), in place of their
/// own.
Encoded encode_once(const PrepareAttempt& plan, std::shared_ptr<const Bytes> nodes);
std::shared_ptr<const Bytes> encode_nodes(const NodeList& nodes);

/// Throws Error(protocol) for anything that encode() does not produce. Allocates in proportion to @p bytes, but for a
/// NodeList.
Message decode(std::span<const std::byte> bytes);

/// Whether @p bytes are a Fence, ModexRequest, ModexReply, ConsoleOutput or RanksObserved, which may be long, judged by
/// the first byte.
bool is_bulk(std::span<const std::byte> bytes);

/// "RankEnded", for logs.
const char* name_of(const Message& message);

}  // namespace ddp::launcher::control
