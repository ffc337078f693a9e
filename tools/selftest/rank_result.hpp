// One rank's findings in the self-test, and their encoding for rank 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/cpu_set.hpp>

namespace ddp::selftest {

enum class Severity : std::uint8_t { failure, warning };

struct Finding {
  Severity severity = Severity::failure;
  std::string check;          ///< "collectives"
  std::string what;           ///< one line
  std::vector<int> blamed{};  ///< world ranks at fault, as far as this rank can tell; never empty
  friend bool operator==(const Finding&, const Finding&) = default;
};

struct RankResult {
  int rank = 0;
  std::string host;
  CpuSet cpus;  ///< that it may run on
  std::vector<Finding> findings;
  friend bool operator==(const RankResult&, const RankResult&) = default;
};

/// Longer texts are truncated: a fence carries every result to every node.
inline constexpr std::size_t kLongestText = 600;

Bytes encode(const RankResult& result);
/// Throws Error(protocol) for anything but a result of this version.
RankResult decode_rank_result(std::span<const std::byte> bytes);

}  // namespace ddp::selftest
