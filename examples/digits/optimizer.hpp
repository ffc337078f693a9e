// Stochastic gradient descent with momentum. Runs on each rank by itself: equal gradients keep the ranks equal.
#pragma once

#include <vector>

#include "digits/network.hpp"

namespace digits {

/// velocity = momentum * velocity + gradient; value -= learning_rate * velocity (the form that PyTorch's SGD has).
template <class Scalar>
class SgdMomentum {
 public:
  /// @param parameters must outlive the optimizer.
  SgdMomentum(std::vector<NetworkParameter<Scalar>>& parameters, Scalar learning_rate, Scalar momentum);

  /// One update from the gradients as they are now.
  void step();

 private:
  std::vector<NetworkParameter<Scalar>>* parameters_;
  std::vector<std::vector<Scalar>> velocities_;
  Scalar learning_rate_;
  Scalar momentum_;
};

extern template class SgdMomentum<float>;
extern template class SgdMomentum<double>;

}  // namespace digits
