#include "training/checkpoint_copies.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/host_name.hpp"
#include "base/log.hpp"
#include "base/message.hpp"
#include "training/object_collectives.hpp"

namespace ddp::training {
namespace {

namespace fs = std::filesystem;

constexpr auto kVariable = "DDP_NODE_CACHE";
constexpr std::size_t kFolderDigits = 16;
// A copy takes at most this part of what is free: ranks need memory, too.
constexpr std::uint64_t kMostOfFree = 4;

/// The copies of the checkpoints in @p folder, for all ranks of this node.
CheckpointFolder copies_of(const std::string& folder) {
  // By its name alone: a file system that does not answer must not matter.
  const std::string path = fs::absolute(folder).lexically_normal().string();
  const std::string digits = FileChecksum{}.add(path).digits().substr(0, kFolderDigits);
  return CheckpointFolder{
      fmt::format("{}/checkpoints.{}", base::Environment::process().raw(kVariable).value_or(""), digits)};
}

std::uint64_t free_memory_bytes() {
  std::ifstream lines{"/proc/meminfo"};
  std::string name, unit;
  for (std::uint64_t kib = 0; lines >> name >> kib && std::getline(lines, unit);) {
    if (name == "MemAvailable:") return kib << 10U;
  }
  return std::numeric_limits<std::uint64_t>::max();
}

/// Throws Error(system) unless the copies of this node fit.
void require_room(const CheckpointManifest& manifest, const std::vector<std::string>& places,
                  const std::string& place) {
  std::uint64_t needed = 0;
  for (std::size_t rank = 0; rank < manifest.shards.size(); ++rank) {
    if (!manifest.sharded || places[rank] == place) needed += manifest.shards[rank].bytes;
  }
  std::uint64_t free = free_memory_bytes();
  struct statvfs facts {};
  const std::string cache = base::Environment::process().raw(kVariable).value_or("");
  if (::statvfs(cache.c_str(), &facts) == 0)
    free = std::min<std::uint64_t>(free, std::uint64_t{facts.f_bavail} * facts.f_frsize);
  if (needed > free / kMostOfFree)
    throw base::system_error(
        fmt::format("keeping {} MiB in '{}', where {} MiB are free", needed >> 20U, cache, free >> 20U), ENOSPC,
        "a copy may take a quarter");
}

/// @return whether the copy is there, and is what was saved
bool write_copy(const CheckpointFolder& copies, const CheckpointManifest& manifest, int rank,
                const std::vector<std::string>& places, std::span<const NamedTensor> tensors, std::string_view extra) {
  const ShardOrigin origin = origin_of(manifest, manifest.sharded ? rank : 0);
  try {
    require_room(manifest, places, places[static_cast<std::size_t>(rank)]);
    if (!manifest.sharded && rank != 0) check_tensors(tensors);  // they may be anything
    copies.make(manifest.step);
    return write_shard(copies.shard_path(origin), origin, tensors, extra) == manifest.shards[origin.rank];
  } catch (const Error& error) {
    // Only rank 0's tensors are what a user means to save.
    const bool expected = error.code() == ErrorCode::invalid_argument;
    if (!expected) base::log(base::LogLevel::warning, "this node keeps no copy of the checkpoint: {}", error.what());
    return false;
  }
}

/// @return whether the copy is one now
bool complete_copy(const CheckpointFolder& copies, const CheckpointManifest& manifest) {
  try {
    base::NewFile file{copies.manifest_path(manifest.step), 0600};
    file.write(format_manifest(manifest));
    file.commit();
    return true;
  } catch (const Error& error) {
    base::log(base::LogLevel::warning, "this node keeps no copy of the checkpoint: {}", error.what());
    return false;
  }
}

/// Makes the copy complete, or removes what is there of it, and all others in any case.
void settle_copies(const CheckpointFolder& copies, const CheckpointManifest& manifest, bool complete) {
  const fs::path kept = copies.step_path(manifest.step);
  std::error_code failure;
  if (!complete || !complete_copy(copies, manifest)) fs::remove_all(kept, failure);
  for (const auto& entry : fs::directory_iterator{kept.parent_path(), failure}) {
    if (entry.path() != kept) fs::remove_all(entry.path(), failure);
  }
  // Of an earlier save of this step.
  std::set<std::string> names{fs::path(copies.manifest_path(manifest.step)).filename()};
  for (int rank = 0; rank < (manifest.sharded ? manifest.ranks : 1); ++rank)
    names.insert(fs::path(copies.shard_path(origin_of(manifest, rank))).filename());
  for (const auto& entry : fs::directory_iterator{kept, failure}) {
    if (!names.contains(entry.path().filename())) fs::remove(entry.path(), failure);
  }
}

/// The manifests of the copies from which a rank could read its file.
struct CopyOffer {
  std::vector<std::string> manifests{};
};
constexpr auto description(const CopyOffer*) {
  return base::describe({"offer of copies of checkpoints"}, base::fields<&CopyOffer::manifests>());
}

Bytes offer_of(const CheckpointFolder& copies, int rank, int ranks, std::optional<std::int64_t> step) {
  CopyOffer offer;
  for (const std::int64_t each : copies.complete_steps()) {
    if (step && each != *step) continue;
    try {
      const CheckpointManifest manifest = copies.read_manifest(each);
      if (manifest.sharded && manifest.ranks != ranks) continue;
      if (fs::exists(copies.shard_path(origin_of(manifest, manifest.sharded ? rank : 0))))
        offer.manifests.push_back(format_manifest(manifest));
    } catch (const Error& error) {
      base::log(base::LogLevel::warning, "a copy of a checkpoint in memory is not used: {}: {}", error.attempted(),
                error.cause());
    }
  }
  return base::encode(offer);
}

/// The newest copy that can be restored, and the first rank that has it.
std::optional<CheckpointSource> choose_copy(const std::vector<Bytes>& offers, const CheckpointFolder& copies) {
  std::optional<CheckpointSource> best;
  std::map<std::string, std::vector<int>> holders;  // by manifest
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    for (const std::string& text : base::decode<CopyOffer>(offers[rank]).manifests)
      holders[text].push_back(static_cast<int>(rank));
  }
  for (const auto& [text, ranks] : holders) {
    CheckpointManifest manifest = parse_manifest(text, copies.step_path(0));
    const bool complete = !manifest.sharded || ranks.size() == offers.size();
    if (complete && (!best || manifest.step > best->manifest.step))
      best = CheckpointSource{.manifest = std::move(manifest), .rank = ranks.front()};
  }
  return best;
}

}  // namespace

std::string place_of_copies() {
  const std::string cache = base::Environment::process().raw(kVariable).value_or("");
  std::error_code none;
  return cache.empty() || !fs::is_directory(cache, none) ? "" : fmt::format("{}:{}", base::host_name(), cache);
}

void keep_copies(ProcessGroup& group, Deadline deadline, const std::string& folder, const CheckpointManifest& manifest,
                 const std::vector<std::string>& places, std::span<const NamedTensor> tensors, std::string_view extra) {
  const auto rank = static_cast<std::size_t>(group.rank());
  const std::string& place = places[rank];
  const auto first_there = static_cast<std::size_t>(std::find(places.begin(), places.end(), place) - places.begin());
  const bool keeps = !place.empty() && first_there == rank;  // for the others of this node
  const CheckpointFolder copies = copies_of(folder);
  const auto kept = act_jointly(group, deadline, [&]() -> Bytes {
    if (!keeps && (place.empty() || !manifest.sharded)) return {};
    return write_copy(copies, manifest, group.rank(), places, tensors, extra) ? base::to_bytes("kept") : Bytes{};
  });
  const bool complete = manifest.sharded
                            ? std::none_of(kept.begin(), kept.end(), [](const Bytes& each) { return each.empty(); })
                            : !kept[rank].empty();
  act_jointly(group, deadline, [&]() -> Bytes {
    if (keeps) settle_copies(copies, manifest, complete);
    return {};
  });
}

std::optional<Restored> restore_copies(ProcessGroup& group, const std::string& folder,
                                       std::span<const NamedTensor> tensors, std::optional<std::int64_t> step,
                                       Deadline deadline) {
  const CheckpointFolder copies = copies_of(folder);
  const auto offers = act_jointly(group, deadline, [&] {
    check_tensors(tensors);
    return place_of_copies().empty() ? base::encode(CopyOffer{}) : offer_of(copies, group.rank(), group.size(), step);
  });
  const auto source = choose_copy(offers, copies);
  if (!source) return std::nullopt;
  try {
    return restore_from(group, copies, *source, tensors, deadline);
  } catch (const Error& error) {
    const std::set<ErrorCode> of_files{ErrorCode::system, ErrorCode::not_found, ErrorCode::protocol,
                                       ErrorCode::mismatch};
    if (!of_files.contains(error.code())) throw;
    // The same on all ranks.
    if (group.rank() == 0)
      base::log(base::LogLevel::warning, "restoring '{}', as the copy of step {} in memory cannot be used: {}: {}",
                folder, source->manifest.step, error.attempted(), error.cause());
    return std::nullopt;
  }
}

}  // namespace ddp::training
