// What nodes leave in the step's store for srun's side: that they are there, and how their ranks have ended.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ddp/bytes.hpp>

namespace ddp::srun_plugin {

/// From the first node that speaks.
struct StepNote {
  std::string node_list;  ///< as Slurm writes it
  std::uint32_t world_size = 0;
  friend bool operator==(const StepNote&, const StepNote&) = default;
};

struct RankEnd {
  std::uint32_t rank = 0;
  std::int32_t status = 0;   ///< as wait(2) gives it
  std::int64_t when_ms = 0;  ///< since 1970, by the node's clock
  std::string node;
  friend bool operator==(const RankEnd&, const RankEnd&) = default;
};

inline constexpr const char* kStepKey = "ddp-step/step";
/// Of the first rank that has ended otherwise than with 0.
inline constexpr const char* kFailureKey = "ddp-step/failure";
/// Set as soon as a node is there.
std::string presence_key(const std::string& node);
/// Of a rank that has ended with 0.
std::string end_key(std::uint32_t rank);

Bytes encode(const StepNote& note);
Bytes encode(const RankEnd& end);
/// Throw Error(protocol).
StepNote decode_step_note(std::span<const std::byte> bytes);
RankEnd decode_rank_end(std::span<const std::byte> bytes);

}  // namespace ddp::srun_plugin
