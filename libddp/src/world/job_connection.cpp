#include "world/job_connection.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "flight/flight_view.hpp"
#include "kvs/memory_store.hpp"
#include "kvs/pmi_store.hpp"
#include "kvs/pmix_store.hpp"
#include "kvs/tcp_store_client.hpp"

namespace ddp::world {
namespace {

/// The same nodes as 0, 1, ... in ascending order.
std::vector<int> numbered_densely(std::vector<int> node_of) {
  std::map<int, int> dense;
  for (const int node : node_of) dense.emplace(node, 0);
  int next = 0;
  for (auto& entry : dense) entry.second = next++;
  for (int& node : node_of) node = dense.at(node);
  return node_of;
}

std::optional<NodeMap> node_map_from(const std::optional<std::string>& process_mapping, int world_size) {
  if (world_size == 1) return NodeMap{{0}};
  if (process_mapping) return NodeMap{parse_process_mapping(*process_mapping, world_size)};
  return std::nullopt;
}

void connect_pmix(JobConnection& connection, const base::Environment& environment, Deadline deadline) {
  auto store = std::make_unique<kvs::PmixStore>(std::make_unique<kvs::PmixSession>(environment, deadline));
  const kvs::JobFacts& facts = store->facts();
  connection.nodes = node_map_from(facts.process_mapping, facts.world_size);
  if (!connection.nodes && !facts.node_of.empty()) connection.nodes = NodeMap{numbered_densely(facts.node_of)};
  // By node numbers alone it is PRRTE 5's, which counts in the order in which it maps, not in that of ranks.
  if (facts.node_of.empty()) connection.local_rank = facts.local_rank;
  connection.single_node = facts.node_names.size() == 1;
  const std::string self = base::host_name();
  for (const std::string& node : facts.node_names) {
    if (node != self) connection.launch.peer_hosts.push_back(node);
  }
  connection.store = std::move(store);
}

void connect_pmi(JobConnection& connection, const base::Environment& environment, Deadline deadline) {
  auto store = kvs::connect_pmi(connection.launch.source == LaunchSource::pmi2 ? 2 : 1, environment, deadline);
  connection.nodes = node_map_from(store->process_mapping(), store->world_size());
  connection.store = std::move(store);
}

void connect_torchrun(JobConnection& connection, Deadline deadline, std::string_view store_name) {
  const base::TorchrunEnvironment& facts = *connection.launch.torchrun;
  connection.local_rank = facts.local_rank;
  connection.node_rank = facts.node_rank;
  connection.single_node = facts.num_nodes == 1;
  // A store that no agent serves is new in each start, and agents that have joined late count restarts anew.
  const int restarts = facts.agent_serves_store ? facts.restart_count : 0;
  try {
    connection.store =
        std::make_unique<kvs::TcpStoreClient>(facts.master_address, facts.master_port, facts.rank, facts.world_size,
                                              fmt::format("{}/{}", store_name, restarts), deadline);
  } catch (const Error& error) {
    if (facts.agent_serves_store) throw;
    // Without an agent, torch.distributed lets rank 0 serve the store itself.
    ErrorDetail detail = error.detail();
    detail.hint =
        "nothing serves a store at MASTER_ADDR:MASTER_PORT because no torchrun agent started this process; "
        "start with torchrun, ddprun or srun --mpi=pmix";
    throw Error(std::move(detail));
  }
}

}  // namespace

JobConnection connect_job(const base::Environment& environment, std::optional<LaunchSource> forced, Deadline deadline,
                          std::string_view store_name) {
  if (!forced) {
    const std::string name = environment.text("DDP_LAUNCH");
    for (const LaunchSource source :
         {LaunchSource::pmix, LaunchSource::pmi2, LaunchSource::pmi1, LaunchSource::torchrun, LaunchSource::openmpi,
          LaunchSource::slurm, LaunchSource::single}) {
      if (name == to_string(source)) forced = source;
    }
  }
  JobConnection connection;
  connection.launch = detect_launch(environment, forced);
  refuse_inherited_rank(environment, connection.launch.source);
  switch (connection.launch.source) {
    case LaunchSource::pmix: connect_pmix(connection, environment, deadline); break;
    case LaunchSource::pmi2:
    case LaunchSource::pmi1: connect_pmi(connection, environment, deadline); break;
    case LaunchSource::torchrun: connect_torchrun(connection, deadline, store_name); break;
    case LaunchSource::openmpi:
    case LaunchSource::slurm:
    case LaunchSource::single:
      connection.store = std::make_unique<kvs::MemoryStore>(std::make_shared<kvs::MemoryHub>(1), 0);
      break;
  }
  if (connection.store->world_size() == 1) connection.nodes = NodeMap{{0}};
  if (connection.nodes && connection.nodes->num_nodes() == 1) connection.single_node = true;
  try {
    check_agreement(connection.launch, connection.store->transport(), connection.store->rank(),
                    connection.store->world_size());
  } catch (...) {
    connection.store->close();
    throw;
  }
  return connection;
}

namespace {

constexpr int kMostAncestors = 100;

/// Variables that distinguish a source's ranks and jobs.
std::span<const std::string_view> identity_of(const base::Environment& environment, LaunchSource source) {
  static constexpr std::array<std::string_view, 2> kPmix{"PMIX_NAMESPACE", "PMIX_RANK"};
  static constexpr std::array<std::string_view, 3> kPmi2{"PMI_FD", "PMI_JOBID", "PMI_RANK"};
  // A socket of PMI_FD is closed in what a rank starts; its number says nothing.
  static constexpr std::array<std::string_view, 2> kPmiPort{"PMI_PORT", "PMI_ID"};
  static constexpr std::array<std::string_view, 6> kTorchrun{
      "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"};
  switch (source) {
    case LaunchSource::pmix: return kPmix;
    case LaunchSource::pmi2: return kPmi2;
    case LaunchSource::pmi1: return environment.has("PMI_FD") ? std::span<const std::string_view>{} : kPmiPort;
    case LaunchSource::torchrun: return kTorchrun;
    case LaunchSource::openmpi:
    case LaunchSource::slurm:
    case LaunchSource::single: break;  // a single rank has no place to take
  }
  return {};
}

/// 0 if unreadable.
pid_t parent_of(const std::string& proc, pid_t pid) {
  std::ifstream status(fmt::format("{}/{}/status", proc, pid));
  for (std::string word; status >> word;) {
    pid_t parent = 0;
    if (word == "PPid:" && status >> parent) return parent;
  }
  return 0;
}

/// Whether a process started with the same values; what it has set since is invisible.
bool began_alike(const std::string& proc, pid_t pid, const base::Environment& environment,
                 std::span<const std::string_view> names) {
  std::ifstream file(fmt::format("{}/{}/environ", proc, pid));
  std::map<std::string, std::string, std::less<>> values;
  for (std::string entry; std::getline(file, entry, '\0');) {
    const auto equals = entry.find('=');
    if (equals != std::string::npos) values.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return !values.empty() && std::ranges::all_of(names, [&](std::string_view name) {
    const auto found = values.find(name);
    const auto own = environment.raw(name);
    return found == values.end() ? !own.has_value() : own == found->second;
  });
}

[[noreturn]] void refuse(pid_t ancestor, const flight::FlightView& rank) {
  throw Error{
      {.code = ErrorCode::invalid_argument,
       .attempted = "joining the job",
       .cause = fmt::format("process {} was started by process {}, which is rank {} of {} in it already, and has "
                            "inherited that rank's environment",
                            ::getpid(), ancestor, rank.rank, rank.world_size),
       .ranks = {rank.rank},
       .hint = "let the rank itself do what needs the job; what it starts can be a job of its own with "
               "DDP_LAUNCH=single, or under ddprun"}};
}

}  // namespace

void refuse_inherited_rank(const base::Environment& environment, LaunchSource source, const std::string& proc) {
  const auto names = identity_of(environment, source);
  if (names.empty()) return;
  pid_t pid = ::getpid();
  for (int i = 0; i < kMostAncestors && (pid = parent_of(proc, pid)) > 0; ++i) {
    if (!began_alike(proc, pid, environment, names)) continue;  // a wrapper may have hidden it
    const auto found = flight::view_flight(proc, pid);
    if (!found || found->world_size < 2) continue;
    if (found->phase == flight::FlightPhase::wired_up) refuse(pid, *found);
  }
}

namespace {

[[noreturn]] void fail(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "computing which rank runs on which node",
               .cause = std::move(cause),
               .hint = "the launcher's description of the job is inconsistent"}};
}

}  // namespace

NodeMap::NodeMap(std::vector<int> node_of) : node_of_(std::move(node_of)) {
  for (int rank = 0; rank < world_size(); ++rank) {
    const int node = node_of_[static_cast<std::size_t>(rank)];
    if (node < 0 || node >= world_size()) fail(fmt::format("rank {} is on node {}", rank, node));
    if (node >= num_nodes()) ranks_.resize(static_cast<std::size_t>(node) + 1);
    auto& ranks = ranks_[static_cast<std::size_t>(node)];
    local_rank_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(rank);
  }
  for (int node = 0; node < num_nodes(); ++node) {
    if (ranks_[static_cast<std::size_t>(node)].empty()) fail(fmt::format("node {} has no rank", node));
  }
}

namespace {

// Far above any machine; bounds the memory that a broken mapping can claim.
constexpr int kLargestNumber = 10'000'000;

struct Block {
  int first_node;
  int node_count;
  int ranks_per_node;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : whole_(text), rest_(text) {}

  std::vector<Block> parse() {
    std::vector<Block> blocks;
    expect("(");
    expect("vector");
    while (take(",")) {
      expect("(");
      const int first_node = number();
      expect(",");
      const int node_count = number();
      expect(",");
      const int ranks_per_node = number();
      expect(")");
      if (node_count == 0 || ranks_per_node == 0) fail("a block is empty");
      blocks.push_back({first_node, node_count, ranks_per_node});
    }
    expect(")");
    if (!rest_.empty()) fail("something follows the closing parenthesis");
    if (blocks.empty()) fail("it has no blocks");
    return blocks;
  }

  [[noreturn]] void fail(std::string_view cause) const {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading the process mapping '{}'", whole_.substr(0, 200)),
                 .cause = std::string(cause),
                 .hint = "expected a form like (vector,(0,2,4))"}};
  }

 private:
  void skip_space() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  bool take(std::string_view token) {
    skip_space();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail(fmt::format("'{}' is missing at character {}", token, whole_.size() - rest_.size() + 1));
  }
  int number() {
    skip_space();
    int value = 0;
    const auto [end, status] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (status != std::errc{} || value < 0 || value > kLargestNumber) {
      fail(fmt::format("a number is missing at character {}", whole_.size() - rest_.size() + 1));
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  std::string_view whole_;
  std::string_view rest_;
};

}  // namespace

std::vector<int> parse_process_mapping(std::string_view text, int world_size) {
  Parser parser(text);
  const std::vector<Block> blocks = parser.parse();
  std::vector<int> node_of;
  node_of.reserve(static_cast<std::size_t>(world_size));
  const auto full = [&] { return static_cast<int>(node_of.size()) == world_size; };
  while (!full()) {
    for (const Block& block : blocks) {
      for (int node = 0; node < block.node_count && !full(); ++node) {
        for (int rank = 0; rank < block.ranks_per_node && !full(); ++rank) {
          node_of.push_back(block.first_node + node);
        }
      }
    }
  }
  return numbered_densely(std::move(node_of));
}

}  // namespace ddp::world
