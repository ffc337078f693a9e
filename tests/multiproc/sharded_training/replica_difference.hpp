// How far a replica that was trained together with others has come from one that was trained alone.
#pragma once

#include <string>

#include "digits/network.hpp"

namespace ddp::sharded_training {

/// The element in which two replicas differ most.
struct ReplicaDifference {
  /// |replica - reference| over the largest magnitude in the reference's tensor: elements near 0 are sums of larger
  /// terms and carry their rounding errors. 0 if all is equal bit by bit, infinity where one is not a number.
  double relative = 0;
  std::string where;  ///< "gradient of layer2.weight[17]"; empty while relative is 0
  double replica = 0;
  double reference = 0;
};

/// Compares every parameter, and every gradient if @p with_gradients. The networks must have the same shape.
template <class Scalar>
ReplicaDifference largest_difference(const digits::Network<Scalar>& replica, const digits::Network<Scalar>& reference,
                                     bool with_gradients);

extern template ReplicaDifference largest_difference(const digits::Network<float>&, const digits::Network<float>&,
                                                     bool);
extern template ReplicaDifference largest_difference(const digits::Network<double>&, const digits::Network<double>&,
                                                     bool);

}  // namespace ddp::sharded_training
