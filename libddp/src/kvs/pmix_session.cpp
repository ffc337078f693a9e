#include "kvs/pmix_session.hpp"

#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "kvs/pmix_library.hpp"

namespace ddp::kvs {
namespace {

constexpr auto kAttempted = "joining the job through PMIx (PMIx_Init)";
// Servers answer in milliseconds.
constexpr std::chrono::seconds kLeaveLimit{15};

struct Joined {
  std::string name_space;
  JobFacts facts;
};

void check_environment(const base::Environment& environment) {
  if (!environment.number("PMIX_RANK")) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = kAttempted,
                 .cause = fmt::format("PMIX_NAMESPACE is '{}' but PMIX_RANK is not set",
                                      environment.raw("PMIX_NAMESPACE").value_or("")),
                 .hint = "start the program with srun --mpi=pmix or ddprun, or unset PMIX_NAMESPACE to run it alone"}};
  }
}

std::optional<std::uint32_t> job_number(const std::string& name_space, pmix_rank_t rank, const char* key,
                                        InfoList options = {}) {
  const pmix_proc_t proc = make_proc(name_space, rank);
  PmixValue value;
  if (pmix().get(&proc, key, options.data(), options.size(), value.out()) != PMIX_SUCCESS) return std::nullopt;
  switch (value.get()->type) {
    case PMIX_UINT32: return value.get()->data.uint32;
    case PMIX_UINT16: return value.get()->data.uint16;
    case PMIX_INT: return static_cast<std::uint32_t>(value.get()->data.integer);
    case PMIX_SIZE: return static_cast<std::uint32_t>(value.get()->data.size);
    default: return std::nullopt;
  }
}

std::optional<std::string> job_text(const std::string& name_space, const char* key, InfoList options = {}) {
  const pmix_proc_t proc = make_proc(name_space, PMIX_RANK_WILDCARD);
  PmixValue value;
  if (pmix().get(&proc, key, options.data(), options.size(), value.out()) != PMIX_SUCCESS) return std::nullopt;
  if (value.get()->type != PMIX_STRING || value.get()->data.string == nullptr) return std::nullopt;
  return value.get()->data.string;
}

/// For what came with the job: without a question to the server or to the rank's node.
InfoList here_only() {
  InfoList options;
  options.boolean(PMIX_OPTIONAL, true);
  return options;
}

/// PRRTE (Open MPI 5's mpirun) writes "Query for unrecognized attribute" for each PMIx_Resolve_nodes.
std::vector<std::string> node_names(const std::string& name_space) {
  std::optional<std::string> list = job_text(name_space, PMIX_NODE_LIST, here_only());
  if (!list) {
    char* resolved = nullptr;
    if (pmix().resolve_nodes(name_space.c_str(), &resolved) != PMIX_SUCCESS || resolved == nullptr) return {};
    const std::unique_ptr<char, decltype(&std::free)> owner(resolved, &std::free);
    list = resolved;
  }
  std::vector<std::string> nodes;
  std::istringstream stream{*list};
  for (std::string node; std::getline(stream, node, ',');) nodes.push_back(node);
  return nodes;
}

/// The node of each rank, which libpmix makes of PMIX_NODE_MAP and PMIX_PROC_MAP; empty if the launcher gives neither.
/// PMIx_Resolve_peers never returns for the other nodes of Open MPI 4.1's mpirun.
std::vector<int> read_node_numbers(const std::string& name_space, int world_size) {
  std::vector<int> node_of;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto node = job_number(name_space, static_cast<pmix_rank_t>(rank), PMIX_NODEID, here_only());
    if (!node || *node > INT_MAX) return {};
    node_of.push_back(static_cast<int>(*node));
  }
  return node_of;
}

JobFacts read_facts(const std::string& name_space, int rank, bool hosts_are_known) {
  JobFacts facts;
  facts.rank = rank;
  const auto size = job_number(name_space, PMIX_RANK_WILDCARD, PMIX_JOB_SIZE);
  if (!size || *size == 0) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading the job size from PMIx (PMIX_JOB_SIZE)",
                 .cause = "the server does not give it",
                 .hint = "the launcher's PMIx support is incomplete; try srun --mpi=pmi2 or ddprun"}};
  }
  facts.world_size = static_cast<int>(*size);
  if (const auto local = job_number(name_space, static_cast<pmix_rank_t>(rank), PMIX_LOCAL_RANK)) {
    facts.local_rank = static_cast<int>(*local);
  }
  if (const auto local = job_number(name_space, PMIX_RANK_WILDCARD, PMIX_LOCAL_SIZE))
    facts.local_size = static_cast<int>(*local);
  facts.process_mapping = job_text(name_space, PMIX_ANL_MAP);
  if (!facts.process_mapping) facts.node_of = read_node_numbers(name_space, facts.world_size);
  if (!facts.process_mapping || !hosts_are_known) facts.node_names = node_names(name_space);
  return facts;
}

Joined join(const std::string& wanted, bool hosts_are_known) {
  pmix_proc_t self{};
  if (const pmix_status_t status = pmix().init(&self, nullptr, 0); status != PMIX_SUCCESS) {
    throw pmix_error(ErrorCode::unavailable, kAttempted,
                     fmt::format("no PMIx server answers for namespace '{}'", wanted), status,
                     "was PMIX_* inherited from a job that has ended? start with srun --mpi=pmix or ddprun, or set "
                     "DDP_LAUNCH=single to run this process alone");
  }
  try {
    const std::string name_space = self.nspace;
    if (wanted != name_space) {
      throw Error{
          {.code = ErrorCode::unavailable,
           .attempted = kAttempted,
           .cause = fmt::format("PMIX_NAMESPACE is '{}' but PMIx runs this process alone, as '{}'", wanted, name_space),
           .hint = "the server's address (PMIX_SERVER_URI*) is missing from the environment"}};
    }
    return {.name_space = name_space, .facts = read_facts(name_space, static_cast<int>(self.rank), hosts_are_known)};
  } catch (...) {
    pmix().finalize(nullptr, 0);
    throw;
  }
}

/// Neither PMIx_Init nor the calls that read facts have a deadline of their own.
Joined join_with_deadline(const base::Environment& environment, Deadline deadline) {
  pmix();  // its errors are those of this node's libraries, not of the server
  auto joined = base::abandonable_call(
      [name_space = environment.raw("PMIX_NAMESPACE").value_or(""),
       hosts_are_known = environment.has("SLURM_STEP_NODELIST")] { return join(name_space, hosts_are_known); },
      deadline);
  if (!joined) {
    throw Error{{.code = ErrorCode::timeout,
                 .attempted = kAttempted,
                 .cause = "the PMIx server did not complete the connection before the deadline",
                 .hint = fmt::format("client is PMIx {}; PMIx 5.0.8 and later hang with Slurm before 25.11.2, and "
                                     "PMIX_MCA_gds=hash helps where the server's shared memory is not readable",
                                     pmix().get_version())}};
  }
  return *std::move(joined);
}

/// PMIx_Finalize; nothing if it hangs.
std::optional<pmix_status_t> leave() {
  const auto finalize = [] { return pmix().finalize(nullptr, 0); };
  try {
    return base::abandonable_call(finalize, Deadline::after(kLeaveLimit));
  } catch (const Error&) {  // no more threads
    return finalize();
  }
}

}  // namespace

PmixSession::PmixSession(const base::Environment& environment, Deadline deadline) {
  check_environment(environment);
  Joined joined = join_with_deadline(environment, deadline);
  name_space_ = std::move(joined.name_space);
  facts_ = std::move(joined.facts);
  open_ = true;
}

void PmixSession::close() noexcept {
  if (!open_) return;
  open_ = false;
  const auto status = leave();
  if (!status) {
    base::log(base::LogLevel::warning,
              "leaving PMIx (PMIx_Finalize): the server has not answered within {} s; this process continues without",
              kLeaveLimit.count());
  } else if (*status != PMIX_SUCCESS) {
    base::log(base::LogLevel::warning, "leaving PMIx (PMIx_Finalize): {}", pmix_status_name(*status));
  }
}

}  // namespace ddp::kvs
