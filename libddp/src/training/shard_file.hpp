// A rank's file of a checkpoint: whose it is, which tensors and bytes it has, then those. Numbers are little-endian,
// tensors as they lie in memory.
#pragma once

#include <sodium/crypto_generichash.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/broadcast_state.hpp>
#include <ddp/error.hpp>

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

// ---- Errors about a checkpoint's files that are not what was written.

/// "reading '<path>': <cause>", and how to go on without the checkpoint.
[[noreturn]] void throw_damaged(const std::string& path, std::string cause, ErrorCode code = ErrorCode::protocol);
/// Error(protocol) for a file in version @p found of its format, where this libddp reads @p known: it may be whole.
[[noreturn]] void throw_other_version(const std::string& path, std::int64_t found, std::int64_t known);

// ---- Tells whether a file of a checkpoint is the one that was written: BLAKE2b, as fast as a disk for each rank.
// FNV-1a is no faster here (0.9 GB/s beside 0.7), and makes no promise for changes of several bytes.

class FileChecksum {
 public:
  static constexpr std::size_t kDigits = 64;

  /// Throws Error(unavailable) if libsodium cannot be used.
  FileChecksum();
  FileChecksum& add(std::string_view bytes);
  /// In lower-case hexadecimal. Ends it.
  std::string digits();

 private:
  crypto_generichash_state state_;
};

}  // namespace ddp::training
