// A rank's file of a checkpoint: whose it is, which tensors and bytes it has, then those. Numbers are little-endian,
// tensors as they lie in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/broadcast_state.hpp>

#include "training/checkpoint_manifest.hpp"

namespace ddp::training {

/// Where a file belongs.
struct ShardOrigin {
  std::string id;  ///< of the save
  std::int64_t step = 0;
  std::uint32_t rank = 0;
  std::uint32_t files = 1;  ///< of the checkpoint
  friend bool operator==(const ShardOrigin&, const ShardOrigin&) = default;
};

struct ShardEntry {
  std::string name;
  std::string description;  ///< "float32[64, 32]"
  std::uint64_t bytes = 0;
  friend bool operator==(const ShardEntry&, const ShardEntry&) = default;
};

struct ShardIndex {
  ShardOrigin origin;
  std::vector<ShardEntry> tensors;
  std::uint64_t extra_bytes = 0;  ///< behind the tensors
  friend bool operator==(const ShardIndex&, const ShardIndex&) = default;
};

/// Magic number, version, and the number of bytes that the index has.
inline constexpr std::size_t kShardStartBytes = 16;
std::string format_index(const ShardIndex& index);
/// The number of bytes of the index that follows @p start, of kShardStartBytes. Throws Error(protocol).
std::uint32_t parse_shard_start(std::string_view start, const std::string& path);
/// @param bytes without the start. Throws Error(protocol).
ShardIndex parse_index(std::string_view bytes, const std::string& path);

/// Throws Error(invalid_argument) for tensors that a file cannot hold: on a device, or two of one name.
void check_tensors(std::span<const NamedTensor> tensors);

/// All on the disk when it returns. Throws Error(system).
ShardRecord write_shard(const std::string& path, const ShardOrigin& origin, std::span<const NamedTensor> tensors,
                        std::string_view extra);

/// Throws Error: protocol unless the file is the one that @p record tells of, mismatch unless it has this origin and
/// these tensors.
void check_shard(const std::string& path, const ShardRecord& record, const ShardOrigin& origin,
                 std::span<const NamedTensor> tensors);

/// Reads a checked file into its tensors, and returns the extra bytes. Throws Error.
std::string read_shard(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace ddp::training
