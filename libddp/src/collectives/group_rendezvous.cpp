#include "collectives/group_rendezvous.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/world.hpp>

#include "base/env_table.hpp"
#include "base/message.hpp"
#include "collectives/group_backends.hpp"
#include "collectives/group_calls.hpp"
#include "world/world_state.hpp"

namespace ddp {
namespace collectives {
namespace {

/// As World::device(), which takes some 10 ms: not where there is no NVIDIA driver.
std::optional<int> device_of(WorldState& world) {
  if (::access("/dev/nvidiactl", F_OK) != 0) return std::nullopt;
  const std::optional<RankDevice>& device = world.device();
  return device ? std::optional(device->index) : std::nullopt;
}

/// What each rank of a world publishes for its first group.
struct PublishedRank {
  Bytes address;  ///< GroupBackends::addresses()
  Bytes record;   ///< world::EndpointRecord
};
constexpr auto description(const PublishedRank*) {
  return base::describe({"address of a rank"}, base::fields<&PublishedRank::address, &PublishedRank::record>());
}

/// What each rank of a group says when some of them make another one.
struct SubgroupOffer {
  std::vector<int> ranks;  ///< of the new group
  Bytes addresses;         ///< of its members
};
constexpr auto description(const SubgroupOffer*) {
  return base::describe({"list of a new group's ranks"},
                        base::fields<&SubgroupOffer::ranks, &SubgroupOffer::addresses>());
}

std::shared_ptr<GroupEngine> make_world_group(WorldState& world, const BackendChoice& choice, std::string name,
                                              std::optional<int> device = std::nullopt) {
  const Deadline deadline = Deadline::after(world.timeout());
  GroupMembers members{
      .name = std::move(name), .rank = world.rank, .channel = world.channel, .peer_timeout = world.peer_timeout()};
  for (int rank = 0; rank < world.world_size; ++rank) {
    members.global_ranks.push_back(world.job_rank(rank));
    members.nodes.push_back(world.nodes.node_of(rank));
  }
  ConnectOptions connect{.interface_address = world.interface.address, .timeout = world.timeout()};
  if (choice.cuda != BackendChoice::Cuda::none) connect.device = device ? device : device_of(world);
  GroupBackends backends(choice, members, connect);
  std::vector<Bytes> addresses(members.global_ranks.size(), backends.addresses());
  if (members.size() > 1) {
    // the endpoint record comes last: a second get of every rank would take as long as the first
    const std::string key = world.key(fmt::format("{}.address", choice.cpu));
    world.store().put(key, base::encode(PublishedRank{.address = addresses.front(),
                                                      .record = world::encode(world.record(world.rank))}));
    world.store().fence(deadline);
    for (int rank = 0; const Bytes& value : world.store().get_all(key, deadline)) {
      auto its = base::decode<PublishedRank>(value);
      addresses[static_cast<std::size_t>(rank)] = std::move(its.address);
      world.learn(rank++, its.record);
    }
  }
  for (int rank = 0; rank < members.size(); ++rank) {
    members.endpoints.push_back(rank == members.rank ? world::PeerEndpoint{} : world.endpoint(rank));
  }
  backends.connect(addresses, deadline);
  connect.why_no_cuda = backends.why_no_cuda();
  const auto timeout = base::Environment::process().seconds("DDP_COLLECTIVE_TIMEOUT");
  auto engine = GroupEngine::make(std::move(members), backends.take(), connect, timeout);
  connect_by_barriers(*engine, deadline);
  return engine;
}

[[noreturn]] void reject(ErrorCode code, std::string cause, std::vector<int> ranks = {}) {
  throw Error{{.code = code,
               .attempted = "making a group of some ranks (new_group)",
               .cause = std::move(cause),
               .ranks = std::move(ranks),
               .hint = "every rank of the parent group must pass the same list of distinct ranks"}};
}

void check_members(std::span<const int> wanted, int parent_size) {
  if (wanted.empty()) reject(ErrorCode::invalid_argument, "the list of members is empty");
  std::vector<int> sorted(wanted.begin(), wanted.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0 || sorted.back() >= parent_size) {
    const int bad = sorted.front() < 0 ? sorted.front() : sorted.back();
    reject(ErrorCode::invalid_argument, fmt::format("{} is not a rank of the parent group of {}", bad, parent_size));
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) reject(ErrorCode::invalid_argument, fmt::format("rank {} is in the list twice", *twice));
}

/// The word that says which backends.
std::string word_of(std::string_view wanted) {
  return wanted == "auto" ? base::Environment::process().text("DDP_BACKEND") : std::string(wanted);
}

/// Whether a group has what is wanted of it.
bool fits(const GroupEngine& engine, const BackendChoice& choice) {
  if (engine.backend_name() != choice.cpu) return false;
  const BackendChoice has = BackendChoice::of(engine);
  return choice.cuda != BackendChoice::Cuda::required || (has.cuda == choice.cuda && has.cuda_name == choice.cuda_name);
}

}  // namespace

std::shared_ptr<GroupEngine> make_subgroup(ProcessGroup& parent, std::span<const int> wanted) {
  GroupEngine& engine = GroupEngine::of(parent);
  engine.check_process("making a group of some ranks (new_group)");
  const GroupMembers& all = engine.members();
  check_members(wanted, all.size());
  const auto place = std::find(wanted.begin(), wanted.end(), all.rank);
  const bool member = place != wanted.end();
  GroupMembers members{.rank = static_cast<int>(place - wanted.begin()),
                       .channel = wanted.size() == 1 ? nullptr : all.channel,
                       .peer_timeout = all.peer_timeout};
  for (const int rank : wanted) {
    members.global_ranks.push_back(all.global(rank));
    members.endpoints.push_back(all.endpoints[static_cast<std::size_t>(rank)]);
    if (!all.nodes.empty()) members.nodes.push_back(all.nodes[static_cast<std::size_t>(rank)]);
  }
  // the number counts on all ranks, members or not
  members.name = fmt::format("{}/{}", all.name, engine.next_subgroup());
  ConnectOptions connect = engine.connect_options();
  if (const Lane* lane = engine.lane_of(DeviceType::cuda); lane != nullptr && lane->traits.device >= 0) {
    connect.device = lane->traits.device;
    connect.splits_off = lane->traits.splits;
  }
  std::optional<GroupBackends> backends;
  if (member) backends.emplace(BackendChoice::of(engine), members, connect);

  const SubgroupOffer own{.ranks = {wanted.begin(), wanted.end()},
                          .addresses = member ? backends->addresses() : Bytes{}};
  std::vector<SubgroupOffer> offers;
  std::vector<int> different;
  for (const Bytes& bytes : all_gather_bytes(parent, base::encode(own))) {
    offers.push_back(base::decode<SubgroupOffer>(bytes));
    if (offers.back().ranks != own.ranks) different.push_back(all.global(static_cast<int>(offers.size() - 1)));
  }
  if (!different.empty()) {
    reject(ErrorCode::mismatch,
           fmt::format("{} passed another list than rank {}", format_ranks(different), all.global(all.rank)),
           different);
  }
  const Deadline deadline = Deadline::after(connect.timeout);
  engine.split(member ? backends->cuda() : nullptr, members.rank, deadline);
  if (!member) return nullptr;

  std::vector<Bytes> addresses;
  for (const int rank : wanted) addresses.push_back(std::move(offers[static_cast<std::size_t>(rank)].addresses));
  backends->connect(addresses, deadline);
  auto made = GroupEngine::make(std::move(members), backends->take(), connect, engine.timeout());
  connect_by_barriers(*made, deadline);
  return made;
}

}  // namespace collectives

ProcessGroup make_process_group(World& world, std::string_view wanted) {
  WorldState& state = WorldState::of(world);
  auto existing = std::static_pointer_cast<collectives::GroupEngine>(state.group);
  if (!existing) {
    existing = collectives::make_world_group(state, collectives::BackendChoice::of(collectives::word_of(wanted)),
                                             state.key("world"));
    state.group = existing;
    if (!state.keep_session()) state.leave_session();
  } else if (wanted != "auto" && !collectives::fits(*existing, collectives::BackendChoice::of(wanted))) {
    throw Error{
        {.code = ErrorCode::invalid_argument,
         .attempted = fmt::format("making the world's process group over '{}'", wanted),
         .cause = fmt::format("it exists already, over '{}'", fmt::join(existing->backend_names(), "' and '"))}};
  }
  return ProcessGroup{std::move(existing)};
}

ProcessGroup make_process_group(std::unique_ptr<KeyValueStore> store, const StoreGroupOptions& options) {
  const auto ranks = static_cast<std::size_t>(store->world_size());
  if (!options.global_ranks.empty() && options.global_ranks.size() != ranks) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = fmt::format("making the process group '{}' over a store", options.name),
                 .cause = fmt::format("it has {} ranks, global_ranks {}", ranks, options.global_ranks.size()),
                 .hint = "give the number of each rank in the job, or none"}};
  }
  const auto choice = collectives::BackendChoice::of(collectives::word_of(options.backend));
  WorldState state(std::move(store), options.timeout, options.global_ranks);
  return ProcessGroup{collectives::make_world_group(state, choice, options.name, options.device)};
}

}  // namespace ddp
