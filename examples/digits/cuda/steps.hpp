// What the network computes on a CUDA device: plain structs, each with the work of one of its elements. The kernels in
// steps.cu give each element a thread.
#pragma once

#include <math.h>

#include <cstdint>

#ifdef __CUDACC__
#define DIGITS_ON_DEVICE __host__ __device__
#else
#define DIGITS_ON_DEVICE
#endif

namespace digits::cuda {

/// result = weight * input + bias, with tanh after it in hidden layers. An element is an output of a sample.
struct LinearStep {
  const float* weight;  ///< outputs x inputs
  const float* bias;
  const float* input;  ///< samples x inputs
  float* result;       ///< samples x outputs
  std::uint32_t elements;
  std::uint32_t inputs;
  std::uint32_t outputs;
  std::uint32_t hidden;

  DIGITS_ON_DEVICE void at(std::uint32_t element) const {
    const std::uint32_t out = element % outputs;
    const float* from = input + element / outputs * inputs;
    const float* row = weight + out * inputs;
    float sum = bias[out];
    for (std::uint32_t i = 0; i < inputs; ++i) sum += row[i] * from[i];
    result[element] = hidden != 0 ? tanhf(sum) : sum;
  }
};

/// Turns a sample's scores into probabilities. An element is a sample.
struct SoftmaxStep {
  float* scores;  ///< samples x classes
  const std::uint8_t* labels;
  float* loss;            ///< cross-entropy in nats
  std::uint8_t* correct;  ///< whether the most probable class is the label
  std::uint32_t elements;
  std::uint32_t classes;

  DIGITS_ON_DEVICE void at(std::uint32_t sample) const {
    float* own = scores + sample * classes;
    std::uint32_t best = 0;
    for (std::uint32_t i = 1; i < classes; ++i) {
      if (own[i] > own[best]) best = i;
    }
    const float largest = own[best];
    const float label_score = own[labels[sample]] - largest;
    float sum = 0;
    for (std::uint32_t i = 0; i < classes; ++i) sum += own[i] = expf(own[i] - largest);
    for (std::uint32_t i = 0; i < classes; ++i) own[i] /= sum;
    loss[sample] = logf(sum) - label_score;
    correct[sample] = best == labels[sample] ? 1 : 0;
  }
};

/// The gradient of the scaled loss by the scores, in place of the probabilities. An element is a class of a sample.
struct ScoreGradientStep {
  float* probabilities;  ///< samples x classes
  const std::uint8_t* labels;
  std::uint32_t elements;
  std::uint32_t classes;
  float scale;

  DIGITS_ON_DEVICE void at(std::uint32_t element) const {
    const float expected = labels[element / classes] == element % classes ? 1.0F : 0.0F;
    probabilities[element] = (probabilities[element] - expected) * scale;
  }
};

/// The gradient of a layer's weights, and behind them its biases. An element is one of these.
struct WeightGradientStep {
  const float* delta;  ///< samples x outputs
  const float* input;  ///< samples x inputs
  float* gradient;     ///< outputs x inputs, then outputs
  std::uint32_t elements;
  std::uint32_t samples;
  std::uint32_t inputs;
  std::uint32_t outputs;

  DIGITS_ON_DEVICE void at(std::uint32_t element) const {
    const bool bias = element >= inputs * outputs;
    const std::uint32_t out = bias ? element - inputs * outputs : element / inputs;
    const std::uint32_t in = bias ? 0 : element % inputs;
    float sum = 0;
    for (std::uint32_t sample = 0; sample < samples; ++sample) {
      sum += delta[sample * outputs + out] * (bias ? 1.0F : input[sample * inputs + in]);
    }
    gradient[element] = sum;
  }
};

/// The gradient by the outputs of the layer before, before their tanh. An element is an input of a sample.
struct InputGradientStep {
  const float* weight;      ///< outputs x inputs
  const float* delta;       ///< samples x outputs
  const float* activation;  ///< samples x inputs
  float* result;            ///< samples x inputs
  std::uint32_t elements;
  std::uint32_t inputs;
  std::uint32_t outputs;

  DIGITS_ON_DEVICE void at(std::uint32_t element) const {
    const std::uint32_t in = element % inputs;
    const float* own = delta + element / inputs * outputs;
    float sum = 0;
    for (std::uint32_t out = 0; out < outputs; ++out) sum += own[out] * weight[out * inputs + in];
    result[element] = sum * (1 - activation[element] * activation[element]);
  }
};

/// Gradient descent with momentum, as SgdMomentum. An element is a parameter.
struct UpdateStep {
  float* value;
  float* velocity;
  const float* gradient;
  std::uint32_t elements;
  float learning_rate;
  float momentum;

  DIGITS_ON_DEVICE void at(std::uint32_t element) const {
    velocity[element] = momentum * velocity[element] + gradient[element];
    value[element] -= learning_rate * velocity[element];
  }
};

/// X(type, name of the kernel)
#define DIGITS_STEPS(X)                         \
  X(LinearStep, digits_linear)                  \
  X(SoftmaxStep, digits_softmax)                \
  X(ScoreGradientStep, digits_score_gradient)   \
  X(WeightGradientStep, digits_weight_gradient) \
  X(InputGradientStep, digits_input_gradient)   \
  X(UpdateStep, digits_update)

}  // namespace digits::cuda
