// Rules on software that must be the same everywhere.
#include <map>

#include <fmt/format.h>

#include "doctor/families.hpp"
#include "doctor/software_version.hpp"

namespace ddp::tools::doctor {
namespace {

void compare(const JobFacts& job, Findings& findings, const std::string& what, std::string RankFacts::*field) {
  std::map<std::string, std::vector<int>> ranks;
  for (const RankFacts& rank : job.ranks) {
    if (!(rank.*field).empty()) ranks[rank.*field].push_back(rank.rank);
  }
  if (ranks.size() < 2) return;
  for (const auto& [version, same] : ranks) findings.on_ranks(same, fmt::format("{} {}", what, version));
}

void check_libddp(const JobFacts& job, Findings& findings) { compare(job, findings, "libddp", &RankFacts::version); }

void check_pmix(const JobFacts& job, Findings& findings) { compare(job, findings, "PMIx", &RankFacts::pmix_version); }

struct BadPair {
  VersionRange slurm;
  VersionRange pmix;
  const char* effect;
  const char* fix;
  bool in_shared_memory;  ///< PMIX_MCA_gds=hash avoids it
};

constexpr Version kAll{};
constexpr Version kNone{.major = 1000, .minor = 0, .patch = 0};
// docs/versions.md has them, too.
constexpr BadPair kBadPairs[] = {
    // openpmix#3645
    {.slurm = {.from = kAll, .below = {25, 11, 2}},
     .pmix = {.from = {5, 0, 8}, .below = kNone},
     .effect = "programs hang in PMIx_Init",
     .fix = "Slurm 25.11.2, or PMIx 5.0.7; or srun --mpi=pmi2, or --ddp with its store",
     .in_shared_memory = false},
    // openpmix#3019; Slurm's commit d23cad68df
    {.slurm = {.from = kAll, .below = {23, 2, 2}},
     .pmix = {.from = {5, 0, 0}, .below = {5, 0, 8}},
     .effect = "programs crash in the shared memory of PMIx",
     .fix = "Slurm 23.02.3, or export PMIX_MCA_gds=hash",
     .in_shared_memory = true},
    // Slurm's commit 1f93869092
    {.slurm = {.from = {23, 2, 2}, .below = {23, 2, 3}},
     .pmix = {.from = kAll, .below = {5, 0, 0}},
     .effect = "users may not open the shared memory of PMIx",
     .fix = "Slurm 23.02.3, or export PMIX_MCA_gds=hash",
     .in_shared_memory = true},
};

void check_pairs(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const std::string& slurm = job.node_of(rank).facts.slurm_version;
    if (slurm.empty() || rank.pmix_version.empty()) continue;
    const bool without_shared_memory = rank.variable("PMIX_MCA_gds") == "hash";
    for (const BadPair& pair : kBadPairs) {
      if (!pair.slurm.contains(Version::of(slurm)) || !pair.pmix.contains(Version::of(rank.pmix_version))) continue;
      if (pair.in_shared_memory && without_shared_memory) continue;
      findings.on_rank(rank, fmt::format("Slurm {} with PMIx {}: {}", slurm, rank.pmix_version, pair.effect), pair.fix);
    }
  }
}

void check_drivers(const JobFacts& job, Findings& findings) {
  std::map<std::string, std::vector<const NodeRecord*>> nodes;
  for (const NodeRecord& node : job.nodes) {
    if (!node.facts.nvidia_driver.empty()) nodes[node.facts.nvidia_driver].push_back(&node);
  }
  if (nodes.size() < 2) return;
  for (const auto& [version, same] : nodes) {
    for (const NodeRecord* node : same) findings.on_node(*node, fmt::format("NVIDIA's driver {}", version));
  }
}

void check_firmware(const JobFacts& job, Findings& findings) {
  std::map<std::string, std::map<std::string, std::vector<const NodeRecord*>>> nodes;  // by board and version
  for (const NodeRecord& node : job.nodes) {
    for (const RdmaPortFacts& port : node.facts.rdma) {
      if (!port.board.empty() && !port.firmware.empty()) nodes[port.board][port.firmware].push_back(&node);
    }
  }
  for (const auto& [board, by_version] : nodes) {
    if (by_version.size() < 2) continue;
    for (const auto& [version, same] : by_version) {
      for (const NodeRecord* node : same) findings.on_node(*node, fmt::format("{} with firmware {}", board, version));
    }
  }
}

constexpr Rule kVersionRules[] = {
    {.id = "libddp-versions",
     .severity = Severity::error,
     .title = "ranks run different versions of libddp",
     .meaning = "Their messages may not fit; programs fail while they wire up.",
     .fix = "install one version on all nodes, or load one module in the job script",
     .check = &check_libddp},
    {.id = "pmix-versions",
     .severity = Severity::warning,
     .title = "nodes run different versions of PMIx",
     .meaning = "Slurm's PMIx plugins of the nodes talk to each other; wire-up may fail or hang between versions.",
     .fix = "install one version of PMIx on all nodes, and restart slurmd",
     .check = &check_pmix},
    {.id = "slurm-pmix",
     .severity = Severity::error,
     .title = "this Slurm does not work with this PMIx",
     .meaning = "Known pairs of versions, by which programs hang or fail while they wire up.",
     .fix = "update one of them, or start with srun --mpi=pmi2",
     .check = &check_pairs},
    {.id = "drivers-differ",
     .severity = Severity::info,
     .title = "nodes have different drivers of NVIDIA",
     .meaning =
         "CUDA works between them, but features that NCCL agrees on by driver (cuMem, NVLS, dma-buf) may be there "
         "on some nodes only.",
     .fix = "update the nodes to one image",
     .check = &check_drivers},
    {.id = "firmware-differs",
     .severity = Severity::info,
     .title = "RDMA adapters of one kind have different firmware",
     .meaning = "Nothing is wrong by itself; it explains why adapters behave differently.",
     .fix = "mlxfwmanager --online -u, or the vendor's tool",
     .check = &check_firmware},
};

}  // namespace

std::span<const Rule> version_rules() { return kVersionRules; }

}  // namespace ddp::tools::doctor
