// Which samples of a data set a rank trains on: torch.utils.data.DistributedSampler, index for index. Guide:
// docs/reference/training.md.
#pragma once

#include <cstdint>
#include <vector>

#include <ddp/process_group.hpp>

namespace ddp {

/// What happens to the samples that are left over when a data set is split equally among the ranks.
enum class Remainder {
  pad,     ///< repeat the first samples until all ranks have equally many: torch's drop_last=False
  drop,    ///< leave them out: torch's drop_last=True
  uneven,  ///< the first ranks have one sample more; each sample is used once. For loops that allow it
};

/// How samples are dealt. Equal on all ranks.
struct SamplerOptions {
  bool shuffle = true;                   ///< a new permutation in each epoch; false: the data set's order
  std::int64_t seed = 0;                 ///< seed + epoch, of which 32 bits count, seeds the permutation
  Remainder remainder = Remainder::pad;  ///< what happens to left-over samples
};

/// Deals the samples 0 to dataset_size - 1 to the ranks in turn, in an order that is new in each epoch and equal on all
/// ranks: rank r has every ranks-th sample of the order, starting at r. Only construction may communicate. With the
/// same arguments, the indices are those of PyTorch 2.13's sampler. Value type; not synchronized.
class DistributedSampler {
 public:
  /// Throws Error(invalid_argument) unless dataset_size >= 0 and 0 <= rank < ranks.
  DistributedSampler(std::int64_t dataset_size, int ranks, int rank, SamplerOptions options = {});
  /// For this rank of @p group. Collective; throws Error(mismatch), on all ranks, if the arguments differ.
  DistributedSampler(std::int64_t dataset_size, const ProcessGroup& group, SamplerOptions options = {});

  /// Call it before each epoch, with the same number on all ranks; otherwise every epoch has the same order.
  void set_epoch(std::int64_t epoch) noexcept { epoch_ = epoch; }
  std::int64_t epoch() const noexcept { return epoch_; }  ///< as of the last set_epoch()

  /// Samples of this rank in an epoch; equal on all ranks unless uneven.
  std::int64_t size() const noexcept;
  /// Those samples, in order. With shuffle it permutes the whole data set: 8 bytes and some 10 ns per sample.
  std::vector<std::int64_t> indices() const;

 private:
  std::int64_t dataset_size_;
  int ranks_;
  int rank_;
  SamplerOptions options_;
  std::int64_t epoch_ = 0;
};

}  // namespace ddp
