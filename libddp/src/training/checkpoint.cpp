#include <ddp/checkpoint.hpp>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/message.hpp"
#include "training/checkpoint_copies.hpp"
#include "training/checkpoint_folder.hpp"
#include "training/folder_owner.hpp"
#include "training/object_collectives.hpp"

namespace ddp {

training::ShardOrigin training::origin_of(const CheckpointManifest& manifest, int rank) {
  return {.id = manifest.id,
          .step = manifest.step,
          .rank = static_cast<std::uint32_t>(rank),
          .files = manifest.sharded ? static_cast<std::uint32_t>(manifest.ranks) : 1U};
}

namespace {

using training::act_jointly;
using training::CheckpointFolder;
using training::CheckpointManifest;
using training::origin_of;
using training::ShardOrigin;
using training::ShardRecord;

/// What a rank brings to a save, to be compared.
struct SaveOpening {
  std::int64_t step = 0;
  bool sharded = false;
  bool memory = false;
  std::string place{};  ///< of copies in memory
  std::string id{};     ///< of rank 0
};
constexpr auto description(const SaveOpening*) {
  return base::describe({"opening of a save"},
                        base::fields<&SaveOpening::step, &SaveOpening::sharded, &SaveOpening::memory,
                                     &SaveOpening::place, &SaveOpening::id>());
}

/// The manifest to restore, as rank 0 has found it.
struct FoundManifest {
  std::int64_t step = 0;
  std::string text{};
};
constexpr auto description(const FoundManifest*) {
  return base::describe({"manifest of a checkpoint"}, base::fields<&FoundManifest::step, &FoundManifest::text>());
}

std::string text_of(const SaveOpening& opening) {
  return fmt::format("step {} {}{}", opening.step, opening.sharded ? "by all ranks" : "by rank 0",
                     opening.memory ? " with copies in memory" : "");
}

/// The save that all ranks have opened, with rank 0's id. Throws Error(mismatch) unless they mean the same.
CheckpointManifest agreed_save(const ProcessGroup& group, const std::vector<SaveOpening>& openings) {
  const SaveOpening& first = openings.front();
  std::vector<int> others;
  std::string different;
  for (std::size_t rank = 1; rank < openings.size(); ++rank) {
    const SaveOpening& opening = openings[rank];
    if (std::tie(opening.step, opening.sharded, opening.memory) == std::tie(first.step, first.sharded, first.memory))
      continue;
    others.push_back(group.global_ranks()[rank]);
    if (different.empty()) different = text_of(opening);
  }
  if (others.empty()) {
    CheckpointManifest manifest;
    manifest.step = first.step;
    manifest.sharded = first.sharded;
    manifest.id = first.id;
    manifest.ranks = group.size();
    return manifest;
  }
  throw Error{{.code = ErrorCode::mismatch,
               .attempted = "saving a checkpoint",
               .cause = fmt::format("rank {} saves {}, others {}", group.global_ranks()[0], text_of(first), different),
               .ranks = std::move(others),
               .hint = "call save or save_sharded with the same step on all ranks"}};
}

/// The newest checkpoint whose files are there; without one, the newest. Says which it passes over.
CheckpointManifest newest_whole(const CheckpointFolder& folder, const std::vector<std::int64_t>& complete) {
  std::string passed;
  std::optional<CheckpointManifest> newest;
  for (const std::int64_t step : complete) {
    CheckpointManifest manifest = folder.read_manifest(step);
    const auto gap = folder.gap_of(manifest);
    if (!gap || !gap->absent) {
      if (newest) base::log(base::LogLevel::warning, "restoring '{}': skipped {}", folder.step_path(step), passed);
      return manifest;
    }
    passed += fmt::format("{}step-{} ({})", passed.empty() ? "" : ", ", step, gap->cause);
    if (!newest) newest = std::move(manifest);
  }
  return *newest;
}

/// On rank 0: step and text of the manifest to restore, the newest or that of @p step; empty if there is none.
Bytes find_manifest(const CheckpointFolder& folder, std::optional<std::int64_t> step) {
  const std::vector<std::int64_t> complete = folder.complete_steps();
  if (!step && complete.empty()) return {};
  if (step && std::find(complete.begin(), complete.end(), *step) == complete.end()) {
    throw base::system_error(fmt::format("looking for '{}'", folder.manifest_path(*step)), ENOENT, {},
                             ErrorCode::not_found);
  }
  const CheckpointManifest manifest = step ? folder.read_manifest(*step) : newest_whole(folder, complete);
  return base::encode(FoundManifest{.step = manifest.step, .text = training::format_manifest(manifest)});
}

}  // namespace

Checkpoints::Checkpoints(ProcessGroup group, std::string folder, CheckpointOptions options)
    : group_(std::move(group)), folder_(std::move(folder)), options_(options) {
  constexpr auto kAttempted = "setting up checkpoints";
  if (folder_.empty()) base::throw_invalid_argument(kAttempted, "the folder has no name", {});
  if (options_.keep < 0) base::throw_invalid_argument(kAttempted, fmt::format("{} to keep", options_.keep), {});
  if (options_.timeout.count() <= 0) base::throw_invalid_argument(kAttempted, "the timeout is not positive", {});
}

void Checkpoints::save(std::int64_t step, std::span<const NamedTensor> tensors, std::string_view extra) {
  save(step, tensors, extra, false);
}

void Checkpoints::save_sharded(std::int64_t step, std::span<const NamedTensor> tensors, std::string_view extra) {
  save(step, tensors, extra, true);
}

void Checkpoints::save(std::int64_t step, std::span<const NamedTensor> tensors, std::string_view extra, bool sharded) {
  const Deadline deadline = Deadline::after(options_.timeout);
  const CheckpointFolder folder{folder_};
  const bool is_first = group_.rank() == 0;
  const bool writes = sharded || is_first;
  const auto inherits = [this](std::string_view save_id) { return owner_->inherits(save_id); };
  const auto opened = act_jointly(group_, deadline, [&] {
    if (step < 0) base::throw_invalid_argument("saving a checkpoint", fmt::format("step {}", step), {});
    if (writes) training::check_tensors(tensors);
    SaveOpening opening{.step = step, .sharded = sharded, .memory = options_.memory};
    if (options_.memory) opening.place = training::place_of_copies();
    if (!is_first) return base::encode(opening);
    folder.make();
    if (!owner_) owner_ = training::FolderOwner::of(folder_, deadline);
    owner_->check(deadline);
    folder.clear_unfinished(inherits);
    opening.id = owner_->new_save_id();
    return base::encode(opening);
  });
  std::vector<SaveOpening> openings;
  std::vector<std::string> places;
  for (const Bytes& each : opened) {
    openings.push_back(base::decode<SaveOpening>(each));
    places.push_back(openings.back().place);
  }
  CheckpointManifest manifest = agreed_save(group_, openings);

  const ShardOrigin origin = origin_of(manifest, group_.rank());
  const auto records = act_jointly(group_, deadline, [&]() -> Bytes {
    if (!writes) return {};
    folder.make(step);
    const ShardRecord record = training::write_shard(folder.shard_path(origin), origin, tensors, extra);
    folder.sync(step);
    return base::encode(record);
  });
  for (const Bytes& record : records) {
    if (!record.empty()) manifest.shards.push_back(base::decode<ShardRecord>(record));
  }
  // Before the checkpoint is there: no copy that is left is older than it.
  if (options_.memory) training::keep_copies(group_, deadline, folder_, manifest, places, tensors, extra);
  act_jointly(group_, deadline, [&]() -> Bytes {
    if (!is_first) return {};
    owner_->check(deadline);
    folder.publish(manifest, inherits);
    folder.clear_old(options_.keep, manifest);
    return {};
  });
}

namespace {

// For a restore that finds the newest checkpoint removed before it is read.
constexpr int kMostTries = 100;

std::optional<Restored> restore_once(ProcessGroup& group, const CheckpointFolder& folder,
                                     std::span<const NamedTensor> tensors, std::optional<std::int64_t> step,
                                     Deadline deadline) {
  const bool is_first = group.rank() == 0;
  const auto found = act_jointly(group, deadline, [&] {
    training::check_tensors(tensors);
    return is_first ? find_manifest(folder, step) : Bytes{};
  });
  if (found[0].empty()) return std::nullopt;
  const auto text = base::decode<FoundManifest>(found[0]);
  const CheckpointManifest manifest = training::parse_manifest(text.text, folder.manifest_path(text.step));
  if (manifest.sharded && manifest.ranks != group.size()) {
    throw Error{
        {.code = ErrorCode::mismatch,
         .attempted = fmt::format("restoring '{}'", folder.step_path(manifest.step)),
         .cause = fmt::format("{} ranks have saved their parts of it, there are {}", manifest.ranks, group.size()),
         .hint = fmt::format("start {} ranks; any number can restore what rank 0 saves for all", manifest.ranks)}};
  }
  return training::restore_from(group, folder, {.manifest = manifest}, tensors, deadline);
}

}  // namespace

Restored training::restore_from(ProcessGroup& group, const CheckpointFolder& folder, const CheckpointSource& source,
                                std::span<const NamedTensor> tensors, Deadline deadline) {
  const CheckpointManifest& manifest = source.manifest;
  const bool reads = manifest.sharded || group.rank() == source.rank;
  const ShardOrigin origin = origin_of(manifest, manifest.sharded ? group.rank() : 0);
  act_jointly(group, deadline, [&]() -> Bytes {
    if (reads) training::check_shard(folder.shard_path(origin), manifest.shards[origin.rank], origin, tensors);
    return {};
  });
  if (!manifest.sharded) verify_state(group, tensors, "restoring");

  Restored restored{.step = manifest.step};
  const auto extras = act_jointly(group, deadline, [&]() -> Bytes {
    if (!reads) return {};
    restored.extra = training::read_shard(folder.shard_path(origin), tensors);
    return manifest.sharded ? Bytes{} : base::to_bytes(restored.extra);
  });
  if (manifest.sharded) return restored;
  restored.extra = base::to_text(extras[static_cast<std::size_t>(source.rank)]);
  broadcast_state(group, tensors, source.rank);
  return restored;
}

std::optional<Restored> Checkpoints::restore(std::span<const NamedTensor> tensors, std::optional<std::int64_t> step) {
  const Deadline deadline = Deadline::after(options_.timeout);
  if (options_.memory) {
    if (auto restored = training::restore_copies(group_, folder_, tensors, step, deadline)) return restored;
  }
  const CheckpointFolder folder{folder_};
  for (int attempt = 1;; ++attempt) {
    try {
      return restore_once(group_, folder, tensors, step, deadline);
    } catch (const Error& error) {
      // The same on all ranks. A job that saves meanwhile has removed it, and there is a newer one.
      if (step || error.code() != ErrorCode::not_found || attempt == kMostTries) throw;
    }
  }
}

}  // namespace ddp
