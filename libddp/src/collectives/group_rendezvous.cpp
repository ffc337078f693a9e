#include "collectives/group_rendezvous.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/world.hpp>

#include "base/backend_words.hpp"
#include "base/byte_stream.hpp"
#include "base/env_table.hpp"
#include "collectives/all_gather_bytes.hpp"
#include "collectives/backend_loader.hpp"
#include "collectives/local_backend.hpp"
#include "world/world_state.hpp"

namespace ddp {
namespace collectives {
namespace {

/// Not connected. A group of one needs none of those named, but keeps their names.
std::vector<GroupBackend> make_backends(const std::vector<std::string>& names, const GroupMembers& members,
                                        const ConnectOptions& connect) {
  std::vector<GroupBackend> backends;
  for (const std::string& name : names) {
    const BackendPlugin& plugin = members.size() == 1 ? kLocalBackend : load_backend(name);
    backends.push_back({name, plugin.create({.group = members.name,
                                             .rank = members.rank,
                                             .size = members.size(),
                                             .nodes = members.nodes,
                                             .interface_address = connect.interface_address,
                                             .connect_timeout = connect.timeout})});
  }
  return backends;
}

/// What the others need in order to reach this rank's backends.
Bytes addresses_of(const std::vector<GroupBackend>& backends) {
  base::ByteWriter writer;
  for (const GroupBackend& backend : backends) {
    writer.blob(backend.backend->address());
  }
  return std::move(writer).bytes();
}

/// @param addresses of each member, as addresses_of() made them.
void connect_all(std::vector<GroupBackend>& backends, const GroupMembers& members, const std::vector<Bytes>& addresses,
                 Deadline deadline) {
  std::vector<base::ByteReader> readers;
  for (const Bytes& address : addresses) readers.emplace_back(address, "addresses of a rank's backends");
  for (GroupBackend& backend : backends) {
    std::vector<Bytes> its;
    for (base::ByteReader& reader : readers) {
      const auto bytes = reader.blob();
      its.emplace_back(bytes.begin(), bytes.end());
    }
    try {
      backend.backend->connect(its, deadline);
    } catch (const Error& error) {  // a backend knows only ranks of the group
      ErrorDetail detail = error.detail();
      for (int& rank : detail.ranks) rank = members.global(rank);
      throw Error{std::move(detail)};
    }
  }
}

std::shared_ptr<GroupEngine> make_world_group(WorldState& world, std::string_view backend_name) {
  const Deadline deadline = Deadline::after(world.timeout());
  GroupMembers members{.name = world.key("world"),
                       .rank = world.rank,
                       .global_ranks = {},
                       .endpoints = {},
                       .nodes = {},
                       .channel = world.channel,
                       .peer_timeout = world.peer_timeout()};
  for (int rank = 0; rank < world.world_size; ++rank) {
    members.global_ranks.push_back(rank);
    members.nodes.push_back(world.nodes.node_of(rank));
  }
  const ConnectOptions connect{.interface_address = world.interface.address, .timeout = world.timeout()};
  const std::vector<std::string> names{std::string(backend_name)};
  for (const std::string& name : names) load_backend(name);  // a group of one checks it, too
  std::vector<GroupBackend> backends = make_backends(names, members, connect);
  std::vector<Bytes> addresses(members.global_ranks.size(), addresses_of(backends));
  if (members.size() > 1) {
    // the endpoint record comes last: a second get of every rank would take as long as the first
    Bytes own = addresses.front();
    const Bytes record = world::encode(world.record(world.rank));
    own.insert(own.end(), record.begin(), record.end());
    const std::string key = world.key(fmt::format("{}.address", backend_name));
    world.store().put(key, own);
    world.store().fence(deadline);
    for (const int rank : members.global_ranks) {
      Bytes& its = addresses[static_cast<std::size_t>(rank)];
      its = world.store().get(rank, key, deadline);
      base::ByteReader reader(its, "address of a rank");
      for (std::size_t i = 0; i < backends.size(); ++i) reader.blob();
      world.learn(rank, reader.raw(reader.left()));
    }
  }
  for (const int rank : members.global_ranks) {
    members.endpoints.push_back(rank == members.rank ? world::PeerEndpoint{} : world.endpoint(rank));
  }
  connect_all(backends, members, addresses, deadline);
  const auto timeout = base::Environment::process().seconds("DDP_COLLECTIVE_TIMEOUT");
  return std::make_shared<GroupEngine>(std::move(members), std::move(backends), connect, timeout);
}

[[noreturn]] void reject(ErrorCode code, std::string cause, std::vector<int> ranks = {}) {
  throw Error{{.code = code,
               .attempted = "making a group of some ranks (new_group)",
               .cause = std::move(cause),
               .native = {},
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

/// The backend's own name.
std::string choose_backend(std::string_view wanted, const GroupEngine* existing) {
  if (wanted != "auto") return std::string(base::backend_of(wanted));
  if (existing) return existing->backend_name();
  const std::string named = base::Environment::process().text("DDP_BACKEND");
  return named == "auto" ? "host" : std::string(base::backend_of(named));
}

}  // namespace

std::shared_ptr<GroupEngine> make_subgroup(ProcessGroup& parent, std::span<const int> wanted) {
  GroupEngine& engine = GroupEngine::of(parent);
  engine.check_process("making a group of some ranks (new_group)");
  const GroupMembers& all = engine.members();
  check_members(wanted, all.size());
  const auto place = std::find(wanted.begin(), wanted.end(), all.rank);
  const bool member = place != wanted.end();
  GroupMembers members{.name = {},
                       .rank = static_cast<int>(place - wanted.begin()),
                       .global_ranks = {},
                       .endpoints = {},
                       .nodes = {},
                       .channel = wanted.size() == 1 ? nullptr : all.channel,
                       .peer_timeout = all.peer_timeout};
  for (const int rank : wanted) {
    members.global_ranks.push_back(all.global(rank));
    members.endpoints.push_back(all.endpoints[static_cast<std::size_t>(rank)]);
    if (!all.nodes.empty()) members.nodes.push_back(all.nodes[static_cast<std::size_t>(rank)]);
  }
  // the number counts on all ranks, members or not
  members.name = fmt::format("{}/{}", all.name, engine.next_subgroup());
  std::vector<GroupBackend> backends;
  if (member) backends = make_backends(engine.backend_names(), members, engine.connect_options());

  base::ByteWriter own;
  own.integer(wanted.size());
  for (const int rank : wanted) own.integer(rank);
  const Bytes list = own.bytes();
  if (member) own.raw(addresses_of(backends));
  const std::vector<Bytes> replies = all_gather_bytes(parent, own.bytes());

  std::vector<int> different;
  for (std::size_t rank = 0; rank < replies.size(); ++rank) {
    if (replies[rank].size() < list.size() || !std::equal(list.begin(), list.end(), replies[rank].begin())) {
      different.push_back(all.global(static_cast<int>(rank)));
    }
  }
  if (!different.empty()) {
    reject(ErrorCode::mismatch,
           fmt::format("{} passed another list than rank {}", format_ranks(different), all.global(all.rank)),
           different);
  }
  if (!member) return nullptr;

  std::vector<Bytes> addresses;
  for (const int rank : wanted) {
    const Bytes& reply = replies[static_cast<std::size_t>(rank)];
    addresses.emplace_back(reply.begin() + static_cast<std::ptrdiff_t>(list.size()), reply.end());
  }
  connect_all(backends, members, addresses, Deadline::after(engine.connect_options().timeout));
  return std::make_shared<GroupEngine>(std::move(members), std::move(backends), engine.connect_options(),
                                       engine.timeout());
}

}  // namespace collectives

ProcessGroup make_process_group(World& world, std::string_view wanted) {
  WorldState& state = WorldState::of(world);
  auto existing = std::static_pointer_cast<collectives::GroupEngine>(state.group);
  const std::string backend = collectives::choose_backend(wanted, existing.get());
  if (!existing) {
    existing = collectives::make_world_group(state, backend);
    state.group = existing;
    if (!state.keep_session()) state.leave_session();
  } else if (existing->backend_name() != backend) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = fmt::format("making the world's process group over '{}'", backend),
                 .cause = fmt::format("it exists already, over '{}'", existing->backend_name()),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  return ProcessGroup{std::move(existing)};
}

}  // namespace ddp
