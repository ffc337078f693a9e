// The file that makes a checkpoint complete: which files belong to it, and what they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/message_fields.hpp"

namespace ddp::training {

/// A file of a checkpoint.
struct ShardRecord {
  std::uint64_t bytes = 0;
  std::string checksum;  ///< FileChecksum of all of it
  friend bool operator==(const ShardRecord&, const ShardRecord&) = default;
};
constexpr auto description(const ShardRecord*) {
  return base::describe({"record of a file"}, base::fields<&ShardRecord::bytes, &ShardRecord::checksum>());
}

struct CheckpointManifest {
  std::string id;  ///< of this save: 16 hexadecimal digits, random
  std::int64_t step = 0;
  bool sharded = false;               ///< a file a rank; else rank 0's alone
  int ranks = 1;                      ///< that have saved it
  std::vector<ShardRecord> shards{};  ///< by rank
  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

inline constexpr std::size_t kIdDigits = 16;

/// Lines of text. The last one is a checksum of those before.
std::string format_manifest(const CheckpointManifest& manifest);
/// Throws Error(protocol), with what @p path names, for anything that format_manifest() does not give.
CheckpointManifest parse_manifest(std::string_view text, const std::string& path);

}  // namespace ddp::training
