// A small fully connected network with hand-written gradients: enough to train on the digits, and small enough to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "digits/dataset.hpp"

namespace digits {

/// A parameter and its gradient, row by row.
template <class Scalar>
struct NetworkParameter {
  std::string name;                 ///< "layer2.weight"
  std::vector<std::int64_t> shape;  ///< weights: outputs x inputs; biases: outputs
  std::vector<Scalar> value;
  std::vector<Scalar> gradient;
};

/// Layers of tanh(weight * x + bias), the last without tanh but with softmax and cross-entropy.
///
/// tanh rather than ReLU: it is smooth, so sums that were rounded in another order lead to gradients that differ by as
/// little. At the kink of a ReLU one unit in the last place switches a sample's whole contribution on or off.
/// Every sample is computed by itself: what it adds to a gradient does not depend on who else is in the batch.
template <class Scalar>
class Network {
 public:
  /// @param widths inputs, hidden layers, outputs: at least two numbers, none 0. Throws ddp::Error(invalid_argument).
  /// Weights are drawn evenly from +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio, AISTATS 2010), biases are 0.
  Network(std::span<const std::size_t> widths, std::uint64_t seed);

  /// Weight and bias of each layer, first layer first. The vectors' memory stays where it is while the network lives.
  std::vector<NetworkParameter<Scalar>>& parameters() { return parameters_; }
  const std::vector<NetworkParameter<Scalar>>& parameters() const { return parameters_; }

  struct Outcome {
    double loss_sum = 0;      ///< cross-entropy in nats, summed over the batch
    std::size_t correct = 0;  ///< samples whose most probable class is their label
  };

  /// Computes the classes' probabilities and keeps what backward() needs. The batch may be empty.
  /// Throws ddp::Error(invalid_argument) when inputs or labels do not fit the network.
  Outcome forward(const Batch<Scalar>& batch);

  /// Writes the gradient of @p scale times the summed loss of the last forward() into the parameters, from the last
  /// layer to the first, and calls @p on_gradient_ready with a parameter's index as soon as its gradient is final.
  /// After an empty batch all gradients are 0, and are announced just the same.
  void backward(Scalar scale, const std::function<void(std::size_t)>& on_gradient_ready);

 private:
  struct Layer {
    std::size_t inputs;
    std::size_t outputs;
    std::vector<Scalar> result{};  ///< outputs values per sample; of the last layer: probabilities
  };

  std::vector<Layer> layers_;
  std::vector<NetworkParameter<Scalar>> parameters_;  ///< of layer i: weight at 2 i, bias at 2 i + 1
  Batch<Scalar> batch_;                               ///< the last forward()'s
};

extern template class Network<float>;
extern template class Network<double>;

/// The network that the digits are learned with: 64-128-64-10, 17,226 parameters.
inline constexpr std::size_t kDigitsWidths[] = {kPixels, 128, 64, kClasses};

}  // namespace digits
