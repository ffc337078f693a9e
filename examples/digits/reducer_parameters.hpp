// Shows libddp a network: all that connects a model to the Reducer is a list of names, values and gradients.
#pragma once

#include <vector>

#include <ddp/reducer.hpp>

#include "digits/network.hpp"

namespace digits {

/// The network's parameters in its own order, so that Network::backward()'s indices are Reducer::mark_ready()'s.
/// Views: the network must outlive what is made of them.
template <class Scalar>
std::vector<ddp::Parameter> reducer_parameters(Network<Scalar>& network) {
  constexpr ddp::DType kDType = ddp::DTypeOf<Scalar>::value;
  std::vector<ddp::Parameter> parameters;
  for (NetworkParameter<Scalar>& parameter : network.parameters()) {
    parameters.push_back({.name = parameter.name,
                          .value = {parameter.value.data(), kDType, parameter.shape},
                          .gradient = {parameter.gradient.data(), kDType, parameter.shape}});
  }
  return parameters;
}

}  // namespace digits
