// What the user wants from ddprun: the command line with PET_* and DDP_* defaults, checked.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ddp/placement.hpp>

#include "topology/placement/option_words.hpp"

namespace ddp::launcher {

/// The most ranks that one node may get. Four times the hardware threads of the largest nodes in use (about 1024), and
/// well inside what PMIx can number on one node (local ranks are 16-bit).
inline constexpr int kMaxRanksPerNode = 4096;
/// The most nodes of a job.
inline constexpr int kMaxNodes = 65536;
inline constexpr std::size_t kMaxRoleBytes = 255;  ///< each node's messages have it

/// --nnodes: "N" or "MIN:MAX".
struct NodeRange {
  int min = 1;
  int max = 1;
};

/// --nproc-per-node: a number, or what to count on the node.
struct RanksPerNode {
  enum class Kind { number, cpus, gpus, automatic };
  Kind kind = Kind::number;
  int number = 1;  ///< for Kind::number
};

/// How the agents of several nodes find each other. none: not given; --nnodes and Slurm decide.
enum class RendezvousBackend { none, fixed, c10d };  // fixed: torchrun calls it "static"

/// torchrun's --rdzv-conf and the options that lead to a host and a port.
struct RendezvousOptions {
  RendezvousBackend backend = RendezvousBackend::none;
  std::string endpoint_host;                   ///< --rdzv-endpoint; empty: not given
  std::optional<std::uint16_t> endpoint_port;  ///< of --rdzv-endpoint
  std::string master_addr = "127.0.0.1";
  std::optional<std::uint16_t> master_port;
  bool master_addr_given = false;
  std::optional<int> node_rank;                         ///< --node-rank
  std::string run_id = "none";                          ///< --rdzv-id
  std::chrono::milliseconds join_timeout{600'000};      ///< until all nodes have joined
  std::chrono::milliseconds last_call_timeout{30'000};  ///< wait for more nodes once the fewest have joined
  std::chrono::milliseconds scale_up_delay{2'000};      ///< the same after a node has joined a running job
  std::chrono::milliseconds read_timeout{60'000};       ///< wait for the endpoint to appear (torchrun B31)
  std::chrono::milliseconds static_timeout{900'000};    ///< "timeout": static rendezvous
  std::optional<bool> is_host;                          ///< this agent owns the endpoint; nothing: find out
  bool insecure = false;                                ///< --rdzv-insecure: nodes prove nothing
};

/// Of a job by host list.
struct HostEntry {
  std::string name;   ///< as the user wrote it: a name or an address
  int ranks = 0;      ///< 0: as --nproc-per-node says
  int max_ranks = 0;  ///< max_slots; 0: no limit
  bool here = false;  ///< its name, looked up, is this host's
  bool operator==(const HostEntry&) const = default;
};

/// How the program is started.
enum class ProgramMode {
  automatic,  ///< Python script by the interpreter; native executables and what PATH has directly
  module,     ///< -m
  no_python,  ///< --no-python: execute it
  run_path,   ///< --run-path: runpy.run_path in the interpreter
};

/// Which ranks get ddprun's standard input; the others have /dev/null.
enum class StandardInput { rank_zero, all, none };

/// Which standard streams, as torchrun's numbers: 0 none, 1 stdout, 2 stderr, 3 both.
enum class Streams : int { none = 0, out = 1, err = 2, both = 3 };
inline bool has_out(Streams streams) { return (static_cast<int>(streams) & 1) != 0; }
inline bool has_err(Streams streams) { return (static_cast<int>(streams) & 2) != 0; }

/// -r or -t: one value for all local ranks, or one for some.
struct StreamSelection {
  Streams all = Streams::none;
  std::map<int, Streams> by_local_rank{};  ///< wins over `all`, which is none when this is not empty
  Streams of(int local_rank) const {
    const auto found = by_local_rank.find(local_rank);
    return found != by_local_rank.end() ? found->second : all;
  }
};

enum class LogFormat { text, json };

struct LogOptions {
  std::optional<std::string> directory;  ///< --log-dir; "/dev/null": no files at all, not even error files
  StreamSelection redirects;
  StreamSelection tee;
  std::optional<std::set<int>> local_ranks_filter;  ///< local ranks whose output reaches the console
  std::optional<std::set<int>> ranks_filter;        ///< global ranks whose output reaches the console
  std::vector<std::string> stdout_filters;          ///< --duplicate-stdout-filters
  std::vector<std::string> stderr_filters;
  std::string prefix_template;  ///< empty: "[${role_name}${local_rank}]:"; with several nodes "[${rank}]:"
  LogFormat format = LogFormat::text;
  bool timestamps = false;  ///< console lines begin with their time
  bool by_rank = false;     ///< --log-layout rank
};

/// Ends a job that loses nodes again and again: `generations` of them in a row that lived for less than `within`.
struct CrashLoopLimit {
  int generations = 3;  ///< 0: no limit
  std::chrono::milliseconds within{60'000};
};

/// How the ranks of a running job end when other nodes are to take part.
struct ResizeManner {
  enum class How {
    stop,    ///< SIGTERM
    signal,  ///< a signal that they handle; SIGTERM after `grace`
    finish,  ///< by themselves; for a node that leaves, SIGTERM after `grace`
  };
  How how = How::stop;
  int signal = 0;                            ///< of How::signal
  std::chrono::milliseconds grace{120'000};  ///< also for the others, once one rank has ended for the next generation
};

/// Where each agent answers Prometheus.
struct MetricsOptions {
  std::optional<std::uint16_t> port;  ///< 0: one of the kernel's choice; nothing: nowhere
  std::string address = "127.0.0.1";  ///< numeric
};

struct LaunchOptions {
  NodeRange nodes;
  int spares = 0;        ///< --spares: nodes besides these
  bool replace = false;  ///< --replace: lost nodes, by others of Slurm's
  int grow_to = 0;       ///< --grow-to: likewise; 0: not given
  bool expands() const { return replace || grow_to > 0; }
  std::string join;          ///< --join: Slurm's job; then nothing else is given but `verbose`
  bool nodes_given = false;  ///< --nnodes or PET_NNODES: otherwise an allocation decides
  RanksPerNode nproc;
  bool standalone = false;
  RendezvousOptions rendezvous;
  std::string local_addr;        ///< --local-addr: the address that this node tells others; empty: find out
  std::vector<HostEntry> hosts;  ///< -H, --hostfile; empty: not given
  std::vector<std::string> ssh_command{"ssh"};
  std::vector<std::string> agent_command{};  ///< instead of ssh: a template; empty: ssh
  std::optional<int> ssh_port;

  std::string role = "default";
  ProgramMode mode = ProgramMode::automatic;
  StandardInput standard_input = StandardInput::rank_zero;
  std::string backend;            ///< --backend: DDP_BACKEND of the ranks; empty: as ddprun's
  std::string trace;              ///< --trace: DDP_TRACE_DIR of the ranks; empty: as ddprun's
  std::string as;                 ///< --as: DDP_AS of the ranks; empty: as ddprun's
  bool imitates_openmpi = false;  ///< --imitate
  bool imitates_horovod = false;
  bool pass_local_rank = false;      ///< --pass-local-rank
  std::vector<std::string> command;  ///< script, module or program, and its arguments; never empty
  std::string program_hint;          ///< what to do if there is no such program; empty: nothing special

  int max_restarts = 0;
  CrashLoopLimit crash_loop{};
  ResizeManner resize{};
  std::string warm_workers;                   ///< --warm-workers: modules, with commas; empty: not given
  std::vector<std::string> elastic_settings;  ///< "--on-resize=stop", of jobs whose nodes may change
  std::vector<std::string> given_settings;    ///< those of them that the user has given
  /// After the first failure, the time that the other ranks have to end by themselves before they get SIGTERM.
  /// Nothing: 2 s on the last attempt, none while restarts remain.
  std::optional<std::chrono::milliseconds> failure_grace;
  /// The time from SIGTERM (or a forwarded signal) to SIGKILL.
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::optional<std::chrono::milliseconds> timeout;  ///< --timeout: the whole job may take this long
  /// --hang-report-after; nothing: no reports
  std::optional<std::chrono::milliseconds> hang_report_after = std::chrono::minutes(5);
  std::optional<std::chrono::milliseconds> end_hung;  ///< --end-hung; nothing: ranks that hang are not ended
  std::vector<int> ending_signals;                    ///< --signals-to-handle: forwarded to all ranks; they end the job
  std::vector<int> forwarded_signals;                 ///< --forward-signals: forwarded; the job continues
  std::vector<int> handled_signals() const;           ///< both
  bool torchrun_exit_codes = false;

  BindPolicy bind = BindPolicy::numa;
  topology::GpuVisibility gpus = topology::GpuVisibility::all;
  bool virtual_local_rank = false;

  LogOptions logs;
  std::string report_json;                               ///< file; empty: none
  std::string event_log;                                 ///< file; empty: none
  std::chrono::milliseconds event_log_interval{60'000};  ///< between two "progress" events
  MetricsOptions metrics;
  std::string dump_env;  ///< file, or "stderr"; empty: none
  bool report_bindings = false;
  bool dry_run = false;
  bool verbose = false;
  std::vector<std::string> notices;  ///< "--start-method is ignored: ..."; printed once, at the start
};

}  // namespace ddp::launcher
