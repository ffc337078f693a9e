#include "world/world_state.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <span>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/env_table.hpp"
#include "base/host_name.hpp"
#include "base/log.hpp"
#include "base/message.hpp"
#include "diagnostics/environment/environment_dump.hpp"
#include "flight/flight_memory.hpp"
#include "store_server/store_key.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/placement/rank_device.hpp"
#include "world/job_connection.hpp"
#include "world/rank_binding.hpp"

namespace ddp {
namespace {

// Slurm kills the whole step if a process ends without leaving PMIx. exit() does not destroy objects on the stack, so
// an exit handler closes the sessions that are still open.
class OpenSessions {
 public:
  static OpenSessions& instance() {
    static auto* sessions = new OpenSessions;  // never destroyed: used while the process exits
    return *sessions;
  }
  void add(KeyValueStore* store) {
    const std::lock_guard lock(mutex_);
    stores_.insert(store);
  }
  void remove(KeyValueStore* store) {
    const std::lock_guard lock(mutex_);
    stores_.erase(store);
  }

 private:
  OpenSessions() {
    std::atexit([] { instance().close_all(); });
  }
  void close_all() {
    if (getpid() != owner_) return;  // a forked child: the session is its parent's
    const std::lock_guard lock(mutex_);
    for (KeyValueStore* store : stores_) store->close();
    stores_.clear();
  }

  const pid_t owner_ = getpid();
  std::mutex mutex_;
  std::set<KeyValueStore*> stores_;
};

void warn_of_unknown_variables(const base::Environment& environment) {
  for (const auto& [name, closest] : environment.unknown_ddp_variables()) {
    base::log(base::LogLevel::warning, "the environment variable {} is not known to libddp; did you mean {}?", name,
              closest);
  }
}

/// The ranks agree on an address only after exchanging ports.
std::string listening_address(const std::vector<topology::CandidateAddress>& addresses) {
  if (addresses.size() == 1) return addresses.front().address.address;
  const bool ipv6 = std::any_of(addresses.begin(), addresses.end(), [](const auto& each) { return each.address.ipv6; });
  return ipv6 ? "::" : "0.0.0.0";
}

std::atomic<unsigned> worlds_made{0};

}  // namespace

WorldState::WorldState(const InitOptions& options) : keep_session_(options.keep_session), generation_(worlds_made++) {
  flight::enter_phase(flight::FlightPhase::wiring_up);
  try {
    const auto environment = base::Environment::process();
    read_limits(options.timeout, environment);
    const Deadline deadline = Deadline::after(timeout_);
    environment.text("DDP_LOG_LEVEL");  // the log itself cannot report an invalid one
    wire_up(world::connect_job(environment, options.launch, deadline), environment, deadline);
    flight::enter_phase(flight::FlightPhase::wired_up);
  } catch (...) {
    flight::enter_phase(flight::FlightPhase::left);
    leave_session();
    throw;
  }
}

WorldState::WorldState(std::unique_ptr<KeyValueStore> store, std::optional<std::chrono::milliseconds> timeout,
                       std::vector<int> ranks)
    : guest_(true), ranks_(std::move(ranks)), keep_session_(false) {
  const auto environment = base::Environment::process();
  read_limits(timeout, environment);
  environment.text("DDP_LOG_LEVEL");
  world::JobConnection connection;
  connection.launch.reason = fmt::format("the program's {}", store->transport());
  if (store->world_size() == 1) connection.nodes = world::NodeMap{{0}};
  connection.store = std::move(store);
  wire_up(std::move(connection), environment, Deadline::after(timeout_));
  if (ranks_.empty()) flight::enter_phase(flight::FlightPhase::wired_up);
}

WorldState::~WorldState() {
  if (!guest_) flight::enter_phase(flight::FlightPhase::left);
  group.reset();
  channel.reset();
  leave_session();
}

void WorldState::read_limits(std::optional<std::chrono::milliseconds> timeout, const base::Environment& environment) {
  timeout_ = timeout.value_or(environment.seconds("DDP_INIT_TIMEOUT"));
  peer_timeout_ = base::peer_timeout(environment);
}

void WorldState::wire_up(world::JobConnection connection, const base::Environment& environment, Deadline deadline) {
  store_ = std::move(connection.store);
  session_open_ = true;
  if (!guest_) OpenSessions::instance().add(store_.get());

  rank = store_->rank();
  world_size = store_->world_size();
  source = connection.launch.source;
  source_reason = std::move(connection.launch.reason);
  records_.resize(static_cast<std::size_t>(world_size));
  if (ranks_.empty()) {
    flight::set_world(rank, world_size);
    base::set_log_rank(rank);
  }
  if (rank == 0 && !guest_) warn_of_unknown_variables(environment);

  if (connection.nodes) nodes = *connection.nodes;
  const topology::JobSpan span = connection.single_node ? topology::JobSpan::one_node
                                 : connection.nodes     ? topology::JobSpan::several_nodes
                                                        : topology::JobSpan::unknown;
  topology::CandidateSearch search = find_interfaces(environment, connection.launch.peer_hosts, span);
  world::EndpointRecord own{.hostname = base::host_name(),
                            .node_rank = connection.node_rank.value_or(-1),
                            .channel_port = 0,
                            .process = base::own_process()};
  for (const topology::InterfaceCandidate& candidate : search.candidates) own.addresses.push_back(candidate.at);
  std::optional<world::RankBinding> binding;
  if (!guest_) binding.emplace(environment, world_size);
  const std::string dump = guest_ ? std::string{} : environment.text("DDP_DUMP_ENV");
  if (!dump.empty()) diagnostics::put_environment(*store_, key("environment"), diagnostics::describe_process(rank));
  if (world_size > 1) {
    channel = std::make_shared<world::PeerChannel>(listening_address(own.addresses));
    own.channel_port = channel->port();
    own.channel_token = channel->token();
    store_->put(key("record"), encode(own));
    const int local_rank = connection.nodes ? connection.nodes->local_rank_of(rank) : connection.local_rank.value_or(0);
    if (binding) binding->publish(*store_, key("binding"), local_rank == 0);
    if (rank == 0 && !guest_) put_secret();
    store_->fence(deadline);
    if (!guest_ && !keep_session_) secret();  // while it is readable
  }
  records_[static_cast<std::size_t>(rank)] = own;
  if (!dump.empty() && rank == 0) dump_environments(dump, deadline);
  if (!connection.nodes) nodes = node_map_from_records(deadline);
  choose_interface(std::move(search), environment);

  if (connection.local_rank && *connection.local_rank != nodes.local_rank_of(rank)) {
    throw Error{{.code = ErrorCode::conflict,
                 .attempted = "finding out where the ranks of the job run",
                 .cause = fmt::format("the launcher says that rank {} has local rank {}, but by its node map it is {}",
                                      rank, *connection.local_rank, nodes.local_rank_of(rank)),
                 .ranks = {rank},
                 .hint = "please report this with the output of env from the job"}};
  }
  base::log(guest_ ? base::LogLevel::debug : base::LogLevel::info,
            "{} of {} ranks, local rank {} on node {} of {}, by {}: {}; interface {} ({}): {}", rank, world_size,
            nodes.local_rank_of(rank), nodes.node_of(rank), nodes.num_nodes(), to_string(source), source_reason,
            interface.name, interface.address, interface.reason);
  if (!binding) return;
  auto bound = binding->apply(*store_, key("binding"), nodes.ranks_on(nodes.node_of(rank)), rank,
                              nodes.num_nodes() > 1 ? interface : topology::SocketInterface{}, deadline);
  if (!bound) return;
  placement = std::move(bound->placement);
  settings = std::move(bound->settings);
}

void WorldState::dump_environments(const std::string& destination, Deadline deadline) {
  if (world_size == 1) store_->fence(deadline);  // a fence makes the rank's values visible
  try {
    diagnostics::write_report(diagnostics::collect_environments(*store_, key("environment"), deadline), destination);
  } catch (const Error& error) {
    base::log(base::LogLevel::warning, "DDP_DUMP_ENV: {}", error.what());
  }
}

topology::CandidateSearch WorldState::find_interfaces(const base::Environment& environment,
                                                      const std::vector<std::string>& peer_hosts,
                                                      topology::JobSpan span) {
  const auto interfaces = topology::read_usable_interfaces();
  const auto rdma =
      span == topology::JobSpan::one_node ? std::vector<topology::RdmaFact>{} : topology::read_rdma_devices("/sys");
  return topology::find_candidates(environment, interfaces, rdma, peer_hosts, span);
}

void WorldState::choose_interface(topology::CandidateSearch search, const base::Environment& environment) {
  // Loopback was a fallback for ranks that might all be on this host. They are not: search again for an error that
  // names what is missing.
  if (search.loopback_fallback && nodes.num_nodes() > 1) {
    find_interfaces(environment, {}, topology::JobSpan::several_nodes);
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "choosing the network interface",
                 .cause = "an interface to other hosts came up after this rank had published that it has none",
                 .ranks = {rank},
                 .hint = "start the job again"}};
  }
  std::size_t chosen = 0;
  interface.reason = std::move(search.reason);
  if (search.candidates.size() > 1 && nodes.num_nodes() > 1) {
    const auto& addresses = record(rank).addresses;
    chosen = topology::pick(addresses, agreement());
    interface.reason = agreement().reason;
    for (const std::string& alternative : agreement().alternatives) {
      base::log(base::LogLevel::debug, "network not chosen: {}", alternative);
    }
  }
  interface.name = search.candidates[chosen].interface;
  interface.address = search.candidates[chosen].at.address.address;
  for (const std::string& rejected : search.rejected) {
    base::log(base::LogLevel::debug, "interface not usable: {}", rejected);
  }
}

const topology::Agreement& WorldState::agreement() {
  if (!agreement_) {
    std::vector<std::vector<topology::CandidateAddress>> candidates;
    for (int node = 0; node < nodes.num_nodes(); ++node) {
      candidates.push_back(record(nodes.ranks_on(node).front()).addresses);
    }
    agreement_ = topology::agree(candidates);
  }
  return *agreement_;
}

world::NodeMap WorldState::node_map_from_records(Deadline deadline) {
  // by the launcher's node number if there is one, else by host name in the order of first appearance
  std::vector<int> node_of;
  std::map<std::pair<int, std::string>, int> numbers;
  if (world_size > 1) {
    for (int other = 0; const Bytes& its : store_->get_all(key("record"), deadline)) learn(other++, its);
  }
  for (const std::optional<world::EndpointRecord>& each : records_) {
    const auto identity =
        each->node_rank >= 0 ? std::pair{each->node_rank, std::string()} : std::pair{-1, each->hostname};
    node_of.push_back(numbers.emplace(identity, static_cast<int>(numbers.size())).first->second);
  }
  return world::NodeMap{std::move(node_of)};
}

const world::EndpointRecord& WorldState::record(int other) {
  check_rank(other);
  auto& slot = records_[static_cast<std::size_t>(other)];
  if (!slot) slot = base::decode<world::EndpointRecord>(store().get(other, key("record"), Deadline::after(timeout_)));
  return *slot;
}

void WorldState::learn(int other, std::span<const std::byte> record) {
  check_rank(other);
  auto& slot = records_[static_cast<std::size_t>(other)];
  if (!slot) slot = base::decode<world::EndpointRecord>(record);
}

void WorldState::check_rank(int other) const {
  if (other >= 0 && other < world_size) return;
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "asking about a rank of the job",
               .cause = fmt::format("there is no rank {} in a world of {}", other, world_size)}};
}

world::PeerEndpoint WorldState::endpoint(int other) {
  const world::EndpointRecord& known = record(other);
  const std::size_t chosen =
      known.addresses.size() > 1 && nodes.num_nodes() > 1 ? topology::pick(known.addresses, agreement()) : 0;
  return {.rank = job_rank(other),
          .address = known.addresses[chosen].address.address,
          .port = known.channel_port,
          .token = known.channel_token,
          .process = known.process};
}

const std::optional<RankDevice>& WorldState::device() {
  std::call_once(device_known_, [this] {
    device_ = topology::rank_device(Topology::live(),
                                    {.local_rank = nodes.local_rank_of(rank),
                                     .local_world_size = static_cast<int>(nodes.ranks_on(nodes.node_of(rank)).size()),
                                     .placement = placement ? &*placement : nullptr},
                                    base::Environment::process());
  });
  return device_;
}

std::string WorldState::key(std::string_view name) const { return fmt::format("ddp.{}.{}", generation_, name); }

KeyValueStore& WorldState::store() {
  if (!session_open_) {
    throw Error{
        {.code = ErrorCode::unavailable,
         .attempted = "using the job's key-value store",
         .cause = "the session with the launcher was left",
         .hint = "set keep_session (of init() in Python, of InitOptions in C++), or do this before it is left"}};
  }
  return *store_;
}

void WorldState::put_secret() {
  const auto random = store_server::random_bytes();
  const auto bytes = std::as_bytes(std::span{random});
  secret_.assign(bytes.begin(), bytes.end());
  store_->put(key("secret"), secret_);
}

const Bytes& WorldState::secret() {
  if (secret_.empty() && world_size > 1) secret_ = store().get(0, key("secret"), Deadline::after(timeout_));
  return secret_;
}

void WorldState::leave_session() noexcept {
  if (!session_open_) return;
  session_open_ = false;
  OpenSessions::instance().remove(store_.get());
  store_->close();
}

}  // namespace ddp
