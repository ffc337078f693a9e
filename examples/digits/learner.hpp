// A network that learns, with its gradients averaged over all ranks, on whatever device.
#pragma once

#include <cstddef>

#include <ddp/reducer.hpp>

#include "digits/dataset.hpp"

namespace digits {

class Learner {
 public:
  Learner() = default;
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;
  virtual ~Learner() = default;

  /// One update from this rank's part of a batch; @p scale is the loss' factor. Returns its summed loss.
  virtual double learn(const Batch<float>& batch, float scale) = 0;
  /// How many samples are classified rightly.
  virtual std::size_t correct(const Batch<float>& batch) = 0;
  /// Of the last learn(); null where they are not measured.
  virtual const ddp::ReducerStats* stats() const = 0;
};

}  // namespace digits
