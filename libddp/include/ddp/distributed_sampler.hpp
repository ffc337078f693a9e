// Which samples of a data set are a rank's: torch.utils.data.DistributedSampler, index for index. Guide:
// docs/reference/training.md.
#pragma once

#include <cstdint>
#include <vector>

#include <ddp/process_group.hpp>

namespace ddp {

/// What happens with the samples that are left when a data set is dealt to all ranks equally.
enum class Remainder {
  pad,     ///< the first samples again, until all ranks have as many: torch's drop_last=False
  drop,    ///< left out: torch's drop_last=True
  uneven,  ///< the first ranks have one sample more; each sample is used once. For loops that allow it
};

/// Equal on all ranks.
struct SamplerOptions {
  bool shuffle = true;                   ///< by a permutation of each epoch, else in the data set's order
  std::int64_t seed = 0;                 ///< seed + epoch, of which 32 bits count, seeds the permutation
  Remainder remainder = Remainder::pad;  ///< how samples are dealt that the ranks do not divide
};

/// Deals the samples 0 to dataset_size - 1 to ranks in turn, in an order that is new in each epoch and equal on all
/// ranks without communication but at construction: rank r has every ranks-th sample of the order, from r on. With the
/// same arguments, the indices are those of PyTorch 2.13's sampler. Value type; no thread-safety of its own.
class DistributedSampler {
 public:
  /// Throws Error(invalid_argument) unless dataset_size >= 0 and 0 <= rank < ranks.
  DistributedSampler(std::int64_t dataset_size, int ranks, int rank, SamplerOptions options = {});
  /// For this rank of @p group. Collective; throws Error(mismatch), on all ranks, if the arguments differ.
  DistributedSampler(std::int64_t dataset_size, const ProcessGroup& group, SamplerOptions options = {});

  /// Before each epoch, with the same number on all ranks; else every epoch has the same order.
  void set_epoch(std::int64_t epoch) noexcept { epoch_ = epoch; }
  std::int64_t epoch() const noexcept { return epoch_; }  ///< that of the last set_epoch()

  /// Samples of this rank in an epoch; equal on all ranks unless uneven.
  std::int64_t size() const noexcept;
  /// Them, in order. With shuffle it permutes the whole data set: 8 bytes a sample, some 10 ns.
  std::vector<std::int64_t> indices() const;

 private:
  std::int64_t dataset_size_;
  int ranks_;
  int rank_;
  SamplerOptions options_;
  std::int64_t epoch_ = 0;
};

}  // namespace ddp
