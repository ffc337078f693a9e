// A DistributedSampler whose epoch continues after a restart, also with another number of ranks. Guide:
// docs/reference/training.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/distributed_sampler.hpp>
#include <ddp/process_group.hpp>

namespace ddp {

/// How far all ranks together have come. Independent of the number of ranks: store rank 0's with the model.
struct SamplerState {
  std::int64_t epoch = 0;         ///< from 0
  std::int64_t consumed = 0;      ///< samples at the start of the epoch's order; at most dataset_size
  std::int64_t dataset_size = 0;  ///< samples
  std::int64_t seed = 0;          ///< of the order
  bool shuffle = true;            ///< the order is a permutation
  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

/// One line: "ddp-sampler 1 epoch=3 consumed=1200 of=50000 seed=7 shuffle=1".
std::string to_string(const SamplerState& state);
/// Reads it. Throws Error(invalid_argument), for other versions and impossible numbers, too.
SamplerState parse_sampler_state(std::string_view text);

/// As DistributedSampler in an epoch that no change interrupts. Ranks consume their samples in lockstep, so that what
/// all have consumed is a start of the epoch's order: after resize(), the rest is dealt to the new ranks, and nothing
/// is repeated or lost within an epoch, whatever the sequence of sizes. By default uneven; `pad` repeats fewer samples
/// than there are ranks, once at the epoch's end, and `drop` leaves out as few.
///
/// Horovod's ElasticSampler, which is alike, pads after each change, and fails when fewer samples are left than it pads
/// with; torchdata's StatefulDistributedSampler continues only with the same number of ranks. Value type; no
/// thread-safety of its own.
class ElasticSampler {
 public:
  /// Throws Error(invalid_argument) unless dataset_size >= 0 and 0 <= rank < ranks.
  ElasticSampler(std::int64_t dataset_size, int ranks, int rank, SamplerOptions options = kUneven);
  /// For this rank of @p group. Collective; throws Error(mismatch), on all ranks, if the arguments differ.
  ElasticSampler(std::int64_t dataset_size, const ProcessGroup& group, SamplerOptions options = kUneven);

  /// Samples of this rank that are left in the epoch.
  std::int64_t size() const noexcept;
  /// Them, in order. Costs as DistributedSampler::indices.
  std::vector<std::int64_t> indices() const;

  /// This rank, and each other at the same time, has consumed @p samples more of its indices(): the batch's size, after
  /// each step. At the epoch's end a rank may have had fewer: rank 0 never has.
  /// Throws Error(invalid_argument) for less than 0 or more than size().
  void record(std::int64_t samples);

  /// Starts another epoch from its beginning. The epoch in which the sampler is continues.
  void set_epoch(std::int64_t epoch) noexcept;
  std::int64_t epoch() const noexcept { return state_.epoch; }  ///< the current one

  /// Goes on with other ranks, from what has been recorded. All ranks must have recorded as much: give rank 0's state
  /// to load() where they may have not. Throws as the constructor.
  void resize(int ranks, int rank);

  const SamplerState& state() const noexcept { return state_; }  ///< to store; valid until the next call of a member
  /// Goes on from there. Throws Error(mismatch) when it is of another data set's size, seed or shuffle.
  void load(const SamplerState& state);

 private:
  static constexpr SamplerOptions kUneven{.shuffle = true, .seed = 0, .remainder = Remainder::uneven};

  SamplerState state_;
  int ranks_;
  int rank_;
  Remainder remainder_;
};

}  // namespace ddp
