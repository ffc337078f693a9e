// Rules on NCCL itself, as variables and its library's file show it: which version, where it logs, how long it waits.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <strings.h>

#include <fmt/format.h>

#include "doctor/facts.hpp"
#include "doctor/nccl_network.hpp"
#include "doctor/rule.hpp"

namespace ddp::tools::doctor {
namespace {

/// NCCL opens the file only for these (debug.cc, ncclDebugInit).
bool logs(const RankFacts& rank) {
  const std::string level = rank.variable("NCCL_DEBUG");
  constexpr std::array kLevels{"WARN", "INFO", "ABORT", "TRACE"};
  return std::any_of(kLevels.begin(), kLevels.end(),
                     [&](const char* each) { return ::strcasecmp(level.c_str(), each) == 0; });
}

/// Whether %h or %p is in the name. "%%p" is none: the first two make a plain '%'.
bool has_mark(std::string_view name, char mark) {
  for (std::size_t at = 0; at + 1 < name.size(); ++at) {
    if (name[at] != '%') continue;
    ++at;
    if (name[at] == mark) return true;
  }
  return false;
}

/// Folders that each host has of its own on nearly every cluster.
bool is_of_host(std::string_view path) {
  constexpr std::array<std::string_view, 4> kFolders{"/tmp/", "/var/tmp/", "/dev/shm/", "/run/"};
  return std::any_of(kFolders.begin(), kFolders.end(), [&](std::string_view each) { return path.starts_with(each); });
}

void check_log_file(const JobFacts& job, Findings& findings) {
  std::map<std::pair<std::string, int>, std::vector<int>> writers;  // by name and node; -1: one file for all nodes
  for (const RankFacts& rank : job.ranks) {
    const std::string name = rank.variable("NCCL_DEBUG_FILE");
    const bool device = name.starts_with("/dev/") && !name.starts_with("/dev/shm/");
    if (name.empty() || device || !logs(rank) || has_mark(name, 'p')) continue;
    writers[{name, has_mark(name, 'h') || is_of_host(name) ? rank.node : -1}].push_back(rank.rank);
  }
  for (const auto& [file, ranks] : writers) {
    if (ranks.size() < 2) continue;
    const bool has_host = has_mark(file.first, 'h');
    findings.on_ranks(ranks, fmt::format("NCCL_DEBUG_FILE={}: several ranks write one file", file.first),
                      fmt::format("NCCL_DEBUG_FILE={}{}.%p", file.first, has_host ? "" : ".%h"));
  }
}

/// Exponent of the time that an RDMA port waits for an acknowledgement: 4.096 us * 2^n, several times. -1: unknown.
/// Defaults by NCCL's sources (NCCL_PARAM of IB_TIMEOUT): 14, from 2.14.3 on 18, from 2.23.4 on 20.
long long ib_timeout(const RankFacts& rank, const std::string& version) {
  if (const std::string text = rank.variable("NCCL_IB_TIMEOUT"); !text.empty())
    return std::strtoll(text.c_str(), nullptr, 0);
  if (version.empty()) return -1;
  const Version nccl = Version::of(version);
  return nccl < Version{2, 14, 0} ? 14 : nccl < Version{2, 23, 0} ? 18 : 20;
}

// NVIDIA/nccl#426, #1664: queue pairs give up while switches of large networks reroute or are full.
constexpr std::size_t kManyNodes = 64;
constexpr long long kShortTimeout = 20;

void check_timeout(const JobFacts& job, Findings& findings) {
  if (job.nodes.size() <= kManyNodes) return;
  for (const RankFacts& rank : job.ranks) {
    if (!takes_rdma(job.node_of(rank), rank)) continue;
    const std::string version = job.nccl_version(rank.rank);
    const long long timeout = ib_timeout(rank, version);
    if (timeout <= 0 || timeout >= kShortTimeout) continue;  // 0: for ever
    const bool set = !rank.variable("NCCL_IB_TIMEOUT").empty();
    findings.on_rank(rank, set ? fmt::format("NCCL_IB_TIMEOUT={} on {} nodes", timeout, job.nodes.size())
                               : fmt::format("NCCL {} waits with NCCL_IB_TIMEOUT={} unless told otherwise, on {} nodes",
                                             version, timeout, job.nodes.size()));
  }
}

struct BadNccl {
  VersionRange versions;
  std::string_view effect;
  std::string_view fix;
  bool on_rdma;              ///< only where data takes RDMA, between nodes
  std::string_view avoided;  ///< variable that avoids it with the value 0; empty: none does
};

constexpr std::array kBadNccl{
    // NVIDIA's release notes of NCCL 2.18.1 and 2.18.3
    BadNccl{{{2, 18, 1}, {2, 18, 3}},
            "sums may be wrong where a PCIe switch has one GPU and one RDMA device, as in HGX H100 (Tree with LL128)",
            "NCCL 2.18.3, or NCCL_IB_PCI_RELAXED_ORDERING=0",
            true,
            "NCCL_IB_PCI_RELAXED_ORDERING"},
    // Release notes of NVIDIA's Resiliency Extension 0.5.0
    BadNccl{{{2, 28, 3}, {2, 28, 9}},
            "programs that restart in the same process after a failure crash (SIGSEGV)",
            "NCCL 2.28.9",
            false,
            {}},
};

void check_version(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const std::string version = job.nccl_version(rank.rank);
    if (version.empty()) continue;
    for (const BadNccl& bad : kBadNccl) {
      if (!bad.versions.contains(Version::of(version))) continue;
      if (bad.on_rdma && (!job.several_nodes() || !takes_rdma(job.node_of(rank), rank))) continue;
      if (!bad.avoided.empty() && rank.variable(bad.avoided) == "0") continue;
      findings.on_rank(rank, fmt::format("NCCL {}: {}", version, bad.effect), std::string(bad.fix));
    }
  }
}

void check_copies(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    for (const std::string& copy : rank.nccl_copies) {
      findings.on_rank(rank, fmt::format("LD_LIBRARY_PATH has NCCL {} as well", copy));
    }
  }
}

// NCCL's transport/net_socket.cc (MAX_SOCKETS): beyond, it lowers the number for each thread.
constexpr long long kMostSockets = 64;

void check_sockets(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const auto number = [&](const char* name) { return std::strtoll(rank.variable(name).c_str(), nullptr, 0); };
    const long long threads = number("NCCL_SOCKET_NTHREADS");
    const long long each = number("NCCL_NSOCKS_PERTHREAD");
    if (threads <= 0 || each <= 0 || threads > kMostSockets || each > kMostSockets) continue;  // env-range's
    if (threads * each <= kMostSockets) continue;
    findings.on_rank(rank, fmt::format("NCCL_SOCKET_NTHREADS={} * NCCL_NSOCKS_PERTHREAD={} is more than {}", threads,
                                       each, kMostSockets));
  }
}

void check_ras_port(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    const RankFacts& rank = job.ranks[static_cast<std::size_t>(node.ranks.front())];
    if (node.facts.foreign_ras_port == 0 || rank.variable("NCCL_RAS_ENABLE") == "0") continue;
    findings.on_node(node, fmt::format("another user's process listens at port {}", node.facts.foreign_ras_port));
  }
}

constexpr Rule kNcclRules[] = {
    {.id = "nccl-bad-version",
     .severity = Severity::warning,
     .title = "this version of NCCL has a known fault",
     .meaning = "By NVIDIA's notes, programs crash or compute wrong sums by it.",
     .fix = "use another version of NCCL",
     .check = &check_version},
    {.id = "nccl-log-file",
     .severity = Severity::warning,
     .title = "ranks overwrite each other's log of NCCL",
     .meaning = "Each rank empties the file when it opens it, then all write into it: the lines that matter are lost.",
     .fix = "NCCL_DEBUG_FILE=FILE.%h.%p: NCCL replaces %h by the host's name and %p by the process",
     .check = &check_log_file},
    {.id = "nccl-ib-timeout",
     .severity = Severity::warning,
     .title = "NCCL gives RDMA little time on many nodes",
     .meaning =
         "The time that a port waits for an acknowledgement, 4.096 us * 2^NCCL_IB_TIMEOUT, seven times. Where a large "
         "network is congested or reroutes for longer, the job fails with IBV_WC_RETRY_EXC_ERR (12).",
     .fix = "NCCL_IB_TIMEOUT=22, equal on all ranks",
     .check = &check_timeout},
    {.id = "nccl-copies",
     .severity = Severity::warning,
     .title = "several versions of NCCL are on the search path",
     .meaning =
         "Which one a program gets depends on the order of folders, and on what it was built with: after a change "
         "of modules ranks or programs differ.",
     .fix = "leave one folder with libnccl.so.2 in LD_LIBRARY_PATH",
     .check = &check_copies},
    {.id = "nccl-sockets",
     .severity = Severity::warning,
     .title = "more sockets than NCCL allows",
     .meaning =
         "NCCL opens 64 for each connection at most and lowers the number for each thread, with a warning in its "
         "log only.",
     .fix = "NCCL_SOCKET_NTHREADS * NCCL_NSOCKS_PERTHREAD of at most 64",
     .check = &check_sockets},
    {.id = "nccl-ras-port",
     .severity = Severity::warning,
     .title = "NCCL's RAS cannot use its port",
     .meaning = "ncclras and ddp-info status would ask the other user's job, or get no answer for this one.",
     .fix = "NCCL_RAS_ADDR=localhost:PORT, with another port for each job on the node",
     .check = &check_ras_port},
};

}  // namespace

std::span<const Rule> nccl_rules() { return kNcclRules; }

}  // namespace ddp::tools::doctor
