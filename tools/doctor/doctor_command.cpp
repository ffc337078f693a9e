#include "doctor/doctor_command.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "command/launched.hpp"
#include "command/output.hpp"
#include "doctor/allocation.hpp"
#include "doctor/collect.hpp"
#include "doctor/gather.hpp"
#include "doctor/nccl_interfaces.hpp"
#include "doctor/report.hpp"
#include "world/job_connection.hpp"

namespace ddp::tools::doctor {
namespace {

using Clock = std::chrono::steady_clock;

// With both the whole stays below three seconds, whatever does not answer.
constexpr auto kResolveTime = std::chrono::milliseconds(700);
constexpr auto kProbeTime = std::chrono::milliseconds(1000);

/// Where others shall probe this node: what NCCL and libddp would use.
std::vector<ProbeListener> probed_addresses(const RankFacts& own, const NodeFacts& node) {
  std::vector<ProbeListener> listeners;
  const auto add = [&](const std::string& name, const InterfaceAddress& address) {
    const auto same = [&](const ProbeListener& each) { return each.address == address.address; };
    if (address.address.empty() || std::any_of(listeners.begin(), listeners.end(), same)) return;
    const auto interface = std::find_if(node.interfaces.begin(), node.interfaces.end(),
                                        [&](const InterfaceFacts& each) { return each.name == name; });
    listeners.push_back({.interface = name,
                         .address = address.address,
                         .mtu = interface == node.interfaces.end() ? 0 : interface->mtu,
                         .tcp_port = 0,
                         .udp_port = 0});
  };
  for (const SocketChoice& choice : predict_socket_interfaces(node.interfaces, own.environment)) {
    if (!is_local_only(choice)) add(choice.interface->name, choice.address);
  }
  for (std::size_t i = 0; i < node.candidates.size(); ++i) add(node.candidates[i], node.candidate_facts[i].address);
  return listeners;
}

/// What this rank is. Failures go to rank 0, so the others need not wait.
RankFacts inquire(const base::Environment& environment, const world::JobConnection& job, int rank, int local_rank) {
  RankFacts own;
  try {
    own = collect_rank("/", environment);
    collect_devices(own, Topology::live(), environment);
    if (local_rank == 0) {
      NodeFacts node = collect_node("/", topology::list_raw_interfaces());
      collect_names(node, base::host_name(), environment, Deadline::after(kResolveTime));
      collect_candidates(node, environment, job.launch.peer_hosts, !job.single_node);
      own.of_node = std::move(node);
    }
  } catch (const std::exception& error) {
    own = RankFacts{};
    own.failure = error.what();
    if (local_rank == 0) own.of_node.emplace();
  }
  own.rank = rank;
  own.local_rank = local_rank;
  own.node = job.node_rank.value_or(-1);
  own.host = base::host_name();
  return own;
}

void check_failures(const JobFacts& job) {
  for (const RankFacts& rank : job.ranks) {
    if (rank.failure.empty()) continue;
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "examining the ranks of the job",
                 .cause = fmt::format("rank {} on {}: {}", rank.rank, rank.host, rank.failure),
                 .native = {},
                 .ranks = {rank.rank},
                 .hint = {}}};
  }
}

int print(const DoctorOptions& options, const JobFacts& job, Clock::time_point began) {
  Examination done{.job = &job, .rules = 0, .findings = {}, .time = {}};
  done.findings = examine(job, [&](const Rule& rule) {
    if (!options.wants(rule)) return false;
    ++done.rules;
    return true;
  });
  done.time = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
  write_standard_output(options.json ? format_json(done) : format_text(done));
  if (!options.fail_on || done.findings.empty()) return 0;
  const Severity worst = done.findings.front().rule->severity;  // errors come first
  if (worst < *options.fail_on) return 0;
  return worst == Severity::error ? 2 : 1;
}

/// A process that ends without leaving PMIx makes Slurm kill its whole step.
struct StoreCloser {
  KeyValueStore& store;
  ~StoreCloser() { store.close(); }
};

}  // namespace

int run_doctor(const DoctorOptions& options, std::span<const std::string> arguments) {
  if (options.help) return write_standard_output(kDoctorHelp), 0;
  if (options.rules) return write_standard_output(format_rules()), 0;
  if (options.explain != nullptr) return write_standard_output(explain(*options.explain)), 0;

  const auto began = Clock::now();
  const auto environment = base::Environment::process();
  const bool in_job = !options.no_job && is_launched(environment);
  if (!options.no_job && !in_job) {
    if (const int nodes = allocated_nodes(environment); nodes > 1) {
      return examine_allocation(nodes, arguments, environment.seconds("DDP_INIT_TIMEOUT"));
    }
  }
  const Deadline deadline = Deadline::after(environment.seconds("DDP_INIT_TIMEOUT"));
  const auto forced = in_job ? std::nullopt : std::optional{LaunchSource::single};
  const world::JobConnection connection = world::connect_job(environment, forced, deadline);
  KeyValueStore& store = *connection.store;
  const StoreCloser closer{store};
  const int local_rank =
      connection.nodes ? connection.nodes->local_rank_of(store.rank()) : connection.local_rank.value_or(0);

  RankFacts own = inquire(environment, connection, store.rank(), local_rank);
  std::unique_ptr<ProbeAnswers> answers;
  if (own.of_node && own.failure.empty() && store.world_size() > 1 && !connection.single_node) {
    answers = std::make_unique<ProbeAnswers>(probed_addresses(own, *own.of_node));
    own.of_node->listeners = answers->listeners();
    own.of_node->token = answers->token();
  }
  const auto probe_all = [&](const std::vector<ProbeTarget>& targets) {
    return own.of_node ? probe(targets, own.of_node->interfaces, Deadline::after(kProbeTime))
                       : std::vector<ProbeResult>{};
  };
  const auto job = gather(store, connection.nodes, own, probe_all, deadline);
  if (!job) return 0;
  check_failures(*job);
  return (options.under_srun ? kFirstStatusUnderSrun : 0) + print(options, *job, began);
}

}  // namespace ddp::tools::doctor
