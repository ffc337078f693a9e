// The network of network.hpp on a CUDA device: parameters, gradients and activations stay there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "digits/cuda/driver.hpp"
#include "digits/dataset.hpp"
#include "digits/network.hpp"

namespace digits::cuda {

class DeviceNetwork {
 public:
  /// Starts from the same weights as Network<float>{widths, seed}. @p gpu must outlive this.
  /// @param max_batch the most samples of a forward().
  DeviceNetwork(Gpu& gpu, std::span<const std::size_t> widths, std::uint64_t seed, std::size_t max_batch);

  /// All parameters in one piece of device memory, and their gradients in another in the same order: each layer's
  /// weights, then its biases.
  float* values() const { return values_; }
  float* gradients() const { return gradients_; }
  std::size_t parameter_count() const { return parameter_count_; }

  /// The loss and hits of a batch; waits for the device.
  Network<float>::Outcome forward(const Batch<float>& batch);

  /// Puts the backward pass of the last forward() into the device's stream, from the last layer to the first, and calls
  /// @p on_layer when a layer's gradients are under way: gradients()[first] to [first + count).
  void backward(float scale, const std::function<void(std::size_t first, std::size_t count)>& on_layer);

  /// velocity = momentum * velocity + gradient; value -= learning_rate * velocity.
  void update(float learning_rate, float momentum);

 private:
  struct Layer {
    std::uint32_t inputs;
    std::uint32_t outputs;
    std::size_t first;  ///< of its parameters; the biases are behind inputs * outputs weights
    float* result{};    ///< of the last layer: probabilities
    float* delta;       ///< of hidden layers: the gradient by result
    std::uint32_t parameters() const { return (inputs + 1) * outputs; }
  };

  Gpu& gpu_;
  std::vector<Layer> layers_;
  std::size_t parameter_count_ = 0;
  std::size_t max_batch_;
  std::uint32_t samples_ = 0;  ///< of the last forward()
  float* values_ = nullptr;
  float* gradients_ = nullptr;
  float* velocities_ = nullptr;
  float* inputs_ = nullptr;
  std::uint8_t* labels_ = nullptr;
  float* loss_ = nullptr;
  std::uint8_t* correct_ = nullptr;
};

}  // namespace digits::cuda
