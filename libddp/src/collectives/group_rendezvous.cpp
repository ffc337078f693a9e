// Brings groups into being: the first over the launcher's key-value store, others over the group they are part of.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <ddp/world.hpp>

#include "base/byte_stream.hpp"
#include "base/env_table.hpp"
#include "collectives/group_engine.hpp"
#include "world/world_state.hpp"

namespace ddp {
namespace {

std::shared_ptr<GroupEngine> make_world_group(WorldState& world, std::string_view backend_name) {
  const Deadline deadline = Deadline::after(world.timeout());
  GroupMembers members{
      .name = world.key("world"), .rank = world.rank, .global_ranks = {}, .endpoints = {}, .channel = world.channel};
  const BackendConfig config{.rank = world.rank,
                             .size = world.world_size,
                             .interface_name = world.interface.name,
                             .interface_address = world.interface.address,
                             .connect_timeout = world.timeout()};
  const BackendPlugin& plugin = load_backend(backend_name);
  std::unique_ptr<Backend> backend = config.size == 1 ? make_local_backend() : plugin.create(config);
  std::vector<Bytes> addresses(static_cast<std::size_t>(config.size));
  if (config.size > 1) {
    const std::string key = world.key(fmt::format("{}.address", backend_name));
    world.store().put(key, backend->address());
    world.store().fence(deadline);
    for (int rank = 0; rank < config.size; ++rank) {
      addresses[static_cast<std::size_t>(rank)] = world.store().get(rank, key, deadline);
    }
  }
  for (int rank = 0; rank < config.size; ++rank) {
    members.global_ranks.push_back(rank);
    members.endpoints.push_back(rank == config.rank ? world::PeerEndpoint{} : world.endpoint(rank));
  }
  backend->connect(addresses, deadline);
  const auto timeout = base::Environment::process().seconds("DDP_COLLECTIVE_TIMEOUT");
  return std::make_shared<GroupEngine>(std::move(members), std::string(backend_name), std::move(backend), config,
                                       timeout);
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

/// Every rank's bytes, over the parent group: sizes first, then the bytes.
std::vector<Bytes> all_gather_bytes(ProcessGroup& group, const Bytes& own) {
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> own_size{static_cast<std::int64_t>(own.size())};
  std::vector<std::int64_t> sizes(size);
  group.all_gather(own_size, sizes).wait();
  const std::vector<std::size_t> counts(sizes.begin(), sizes.end());
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  std::vector<std::uint8_t> sent(own.size());
  if (!own.empty()) std::memcpy(sent.data(), own.data(), own.size());
  std::vector<std::uint8_t> received(total);
  group.all_gather_v(sent, received, counts).wait();
  std::vector<Bytes> all;
  std::size_t offset = 0;
  for (const std::size_t count : counts) {
    const auto part = std::as_bytes(std::span(received).subspan(offset, count));
    all.emplace_back(part.begin(), part.end());
    offset += count;
  }
  return all;
}

/// The name of a plugin.
std::string choose_backend(std::string_view wanted, const std::shared_ptr<GroupEngine>& existing) {
  if (wanted != "auto") return std::string(wanted);
  if (existing) return existing->backend_name();
  const std::string named = base::Environment::process().text("DDP_BACKEND");
  return named == "auto" ? "gloo" : named;
}

}  // namespace

ProcessGroup World::process_group(std::string_view wanted) {
  const std::string backend = choose_backend(wanted, state_->world_group);
  if (!state_->world_group) {
    state_->world_group = make_world_group(*state_, backend);
    if (!state_->keep_session()) state_->leave_session();
  } else if (state_->world_group->backend_name() != backend) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = fmt::format("making the world's process group over '{}'", backend),
                 .cause = fmt::format("it exists already, over '{}'", state_->world_group->backend_name()),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  return ProcessGroup{state_->world_group};
}

std::shared_ptr<GroupEngine> make_subgroup(GroupEngine& parent, std::span<const int> wanted) {
  const GroupMembers& all = parent.members();
  check_members(wanted, static_cast<int>(all.global_ranks.size()));
  const auto place = std::find(wanted.begin(), wanted.end(), all.rank);
  const bool member = place != wanted.end();

  BackendConfig config = parent.config();
  config.rank = static_cast<int>(place - wanted.begin());
  config.size = static_cast<int>(wanted.size());
  std::unique_ptr<Backend> backend;
  if (member) {
    backend = config.size == 1 ? make_local_backend() : load_backend(parent.backend_name()).create(config);
  }

  base::ByteWriter own;
  own.integer(wanted.size());
  for (const int rank : wanted) own.integer(rank);
  const Bytes list = own.bytes();
  if (member) own.raw(backend->address());
  // an alias that does not own: this function runs inside a call on the parent, which therefore lives
  ProcessGroup group{std::shared_ptr<GroupEngine>(std::shared_ptr<GroupEngine>(), &parent)};
  const std::vector<Bytes> replies = all_gather_bytes(group, std::move(own).bytes());

  std::vector<int> different;
  for (std::size_t rank = 0; rank < replies.size(); ++rank) {
    if (replies[rank].size() < list.size() || !std::equal(list.begin(), list.end(), replies[rank].begin())) {
      different.push_back(all.global_ranks[rank]);
    }
  }
  if (!different.empty()) {
    reject(ErrorCode::mismatch,
           fmt::format("{} passed another list than rank {}", format_ranks(different),
                       all.global_ranks[static_cast<std::size_t>(all.rank)]),
           different);
  }
  const unsigned number = parent.next_subgroup();
  if (!member) return nullptr;

  GroupMembers members{.name = fmt::format("{}/{}", all.name, number),
                       .rank = config.rank,
                       .global_ranks = {},
                       .endpoints = {},
                       .channel = config.size == 1 ? nullptr : all.channel};
  std::vector<Bytes> addresses;
  for (const int rank : wanted) {
    const auto index = static_cast<std::size_t>(rank);
    members.global_ranks.push_back(all.global_ranks[index]);
    members.endpoints.push_back(all.endpoints[index]);
    addresses.emplace_back(replies[index].begin() + static_cast<std::ptrdiff_t>(list.size()), replies[index].end());
  }
  try {
    backend->connect(addresses, Deadline::after(config.connect_timeout));
  } catch (const Error& error) {  // a backend knows only ranks of the group
    ErrorDetail detail = error.detail();
    for (int& rank : detail.ranks) rank = members.global_ranks[static_cast<std::size_t>(rank)];
    throw Error{std::move(detail)};
  }
  return std::make_shared<GroupEngine>(std::move(members), parent.backend_name(), std::move(backend), config,
                                       parent.timeout());
}

}  // namespace ddp
