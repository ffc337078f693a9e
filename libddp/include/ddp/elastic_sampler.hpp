// A DistributedSampler whose epoch continues after a restart, also with a different number of ranks. Guide:
// docs/reference/training.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/distributed_sampler.hpp>
#include <ddp/process_group.hpp>

namespace ddp {

/// The progress of all ranks together. Independent of the number of ranks: store rank 0's with the model.
struct SamplerState {
  std::int64_t epoch = 0;         ///< from 0
  std::int64_t consumed = 0;      ///< samples, from the start of the epoch's order; at most dataset_size
  std::int64_t dataset_size = 0;  ///< samples
  std::int64_t seed = 0;          ///< of the order
  bool shuffle = true;            ///< the order is a permutation
  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

/// One line: "ddp-sampler 1 epoch=3 consumed=1200 of=50000 seed=7 shuffle=1".
std::string to_string(const SamplerState& state);
/// Parses such a line. Throws Error(invalid_argument), also for other versions and impossible numbers.
SamplerState parse_sampler_state(std::string_view text);

/// Like DistributedSampler in an epoch without changes. Ranks consume their samples in lockstep, so what all have
/// consumed is a prefix of the epoch's order: resize() deals the rest to the new ranks, and no sample is repeated or
/// lost within an epoch, whatever the sequence of sizes. Uneven by default; `pad` repeats fewer samples than there are
/// ranks, once at the epoch's end, and `drop` leaves out as few.
///
/// Horovod's ElasticSampler is similar, but pads after each change, and fails if fewer samples are left than it pads
/// with; torchdata's StatefulDistributedSampler continues only with the same number of ranks. Value type; not
/// synchronized.
class ElasticSampler {
 public:
  /// Throws Error(invalid_argument) unless dataset_size >= 0 and 0 <= rank < ranks.
  ElasticSampler(std::int64_t dataset_size, int ranks, int rank, SamplerOptions options = kUneven);
  /// For this rank of @p group. Collective; throws Error(mismatch), on all ranks, if the arguments differ.
  ElasticSampler(std::int64_t dataset_size, const ProcessGroup& group, SamplerOptions options = kUneven);

  /// Number of this rank's samples that are left in the epoch.
  std::int64_t size() const noexcept;
  /// Those samples, in order. Costs the same as DistributedSampler::indices.
  std::vector<std::int64_t> indices() const;

  /// Records that this rank, and every other rank at the same time, has consumed @p samples more of its indices(): call
  /// it after each step with the batch size. At the epoch's end a rank may have had fewer: rank 0 never has.
  /// Throws Error(invalid_argument) if @p samples is below 0 or above size().
  void record(std::int64_t samples);

  /// Starts another epoch from its beginning; the current epoch continues where it is.
  void set_epoch(std::int64_t epoch) noexcept;
  std::int64_t epoch() const noexcept { return state_.epoch; }  ///< the current one

  /// Continues with other ranks, from what has been recorded. All ranks must have recorded equally much: if they may
  /// not have, pass rank 0's state to load(). Throws like the constructor.
  void resize(int ranks, int rank);

  const SamplerState& state() const noexcept { return state_; }  ///< to store; valid until the next member call
  /// Continues from @p state. Throws Error(mismatch) if it is for another data set's size, seed or shuffle.
  void load(const SamplerState& state);

 private:
  static constexpr SamplerOptions kUneven{.shuffle = true, .seed = 0, .remainder = Remainder::uneven};

  SamplerState state_;
  int ranks_;
  int rank_;
  Remainder remainder_;
};

}  // namespace ddp
