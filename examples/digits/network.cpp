#include "digits/network.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <ddp/error.hpp>

#include "digits/sample_order.hpp"

namespace digits {
namespace {

[[noreturn]] void refuse(std::string attempted, std::string cause, std::string hint) {
  throw ddp::Error{{.code = ddp::ErrorCode::invalid_argument,
                    .attempted = std::move(attempted),
                    .cause = std::move(cause),
                    .hint = std::move(hint)}};
}

/// result = weight * input + bias, for one sample.
template <class Scalar>
void apply_linear(std::size_t inputs, std::size_t outputs, const Scalar* weight, const Scalar* bias,
                  const Scalar* input, Scalar* result) {
  for (std::size_t out = 0; out < outputs; ++out) {
    const Scalar* row = weight + out * inputs;
    Scalar sum = bias[out];
    for (std::size_t in = 0; in < inputs; ++in) sum += row[in] * input[in];
    result[out] = sum;
  }
}

/// Turns scores into probabilities and returns the cross-entropy of @p label. The largest score is subtracted first so
/// that nothing overflows.
template <class Scalar>
Scalar apply_softmax(std::span<Scalar> scores, std::size_t label) {
  const Scalar largest = *std::max_element(scores.begin(), scores.end());
  const Scalar label_score = scores[label] - largest;
  Scalar sum = 0;
  for (Scalar& score : scores) {
    score = std::exp(score - largest);
    sum += score;
  }
  for (Scalar& score : scores) score /= sum;
  return std::log(sum) - label_score;
}

}  // namespace

template <class Scalar>
Network<Scalar>::Network(std::span<const std::size_t> widths, std::uint64_t seed) {
  if (widths.size() < 2 || std::find(widths.begin(), widths.end(), std::size_t{0}) != widths.end()) {
    refuse("making a network", fmt::format("the widths are {{{}}}", fmt::join(widths, ", ")),
           "give at least two widths, none of them 0");
  }
  std::mt19937_64 generator{seed};
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    const std::size_t inputs = widths[i];
    const std::size_t outputs = widths[i + 1];
    layers_.push_back({.inputs = inputs, .outputs = outputs});

    const double bound = std::sqrt(6.0 / static_cast<double>(inputs + outputs));
    std::vector<Scalar> weight(outputs * inputs);
    for (Scalar& value : weight) value = static_cast<Scalar>((2 * next_unit(generator) - 1) * bound);
    const auto rows = static_cast<std::int64_t>(outputs);
    parameters_.push_back({.name = fmt::format("layer{}.weight", i + 1),
                           .shape = {rows, static_cast<std::int64_t>(inputs)},
                           .value = std::move(weight),
                           .gradient = std::vector<Scalar>(outputs * inputs)});
    parameters_.push_back({.name = fmt::format("layer{}.bias", i + 1),
                           .shape = {rows},
                           .value = std::vector<Scalar>(outputs),
                           .gradient = std::vector<Scalar>(outputs)});
  }
}

template <class Scalar>
typename Network<Scalar>::Outcome Network<Scalar>::forward(const Batch<Scalar>& batch) {
  const std::size_t classes = layers_.back().outputs;
  if (batch.inputs.size() != batch.size() * layers_.front().inputs) {
    refuse("running the network on a batch",
           fmt::format("{} labels come with {} input values", batch.size(), batch.inputs.size()),
           fmt::format("every sample needs {} input values", layers_.front().inputs));
  }
  for (const std::uint8_t label : batch.labels) {
    if (label >= classes) {
      refuse("running the network on a batch", fmt::format("there is a label {}", label),
             fmt::format("labels must be less than {}, the network's outputs", classes));
    }
  }

  batch_ = batch;
  const std::vector<Scalar>* input = &batch_.inputs;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    layer.result.resize(batch_.size() * layer.outputs);
    for (std::size_t sample = 0; sample < batch_.size(); ++sample) {
      apply_linear(layer.inputs, layer.outputs, parameters_[2 * i].value.data(), parameters_[2 * i + 1].value.data(),
                   input->data() + sample * layer.inputs, layer.result.data() + sample * layer.outputs);
    }
    if (i + 1 < layers_.size()) {
      for (Scalar& value : layer.result) value = std::tanh(value);
    }
    input = &layer.result;
  }

  Outcome outcome;
  for (std::size_t sample = 0; sample < batch_.size(); ++sample) {
    const std::span<Scalar> scores = std::span{layers_.back().result}.subspan(sample * classes, classes);
    const std::size_t label = batch_.labels[sample];
    outcome.loss_sum += static_cast<double>(apply_softmax(scores, label));
    const auto best = std::max_element(scores.begin(), scores.end()) - scores.begin();
    outcome.correct += static_cast<std::size_t>(best) == label ? 1 : 0;
  }
  return outcome;
}

template <class Scalar>
void Network<Scalar>::backward(Scalar scale, const std::function<void(std::size_t)>& on_gradient_ready) {
  // delta: derivative of the scaled loss by a layer's value before tanh or softmax. For softmax with cross-entropy that
  // is the probability, minus 1 at the label.
  std::vector<Scalar> delta = layers_.back().result;
  for (std::size_t sample = 0; sample < batch_.size(); ++sample) {
    delta[sample * layers_.back().outputs + batch_.labels[sample]] -= 1;
  }
  for (Scalar& value : delta) value *= scale;

  for (std::size_t i = layers_.size(); i-- > 0;) {
    const auto [inputs, outputs] = std::pair{layers_[i].inputs, layers_[i].outputs};
    const std::vector<Scalar>& input = i == 0 ? batch_.inputs : layers_[i - 1].result;
    NetworkParameter<Scalar>& weight = parameters_[2 * i];
    NetworkParameter<Scalar>& bias = parameters_[2 * i + 1];

    std::fill(weight.gradient.begin(), weight.gradient.end(), Scalar{0});
    std::fill(bias.gradient.begin(), bias.gradient.end(), Scalar{0});
    for (std::size_t sample = 0; sample < batch_.size(); ++sample) {
      const Scalar* from = input.data() + sample * inputs;
      for (std::size_t out = 0; out < outputs; ++out) {
        const Scalar factor = delta[sample * outputs + out];
        Scalar* row = weight.gradient.data() + out * inputs;
        for (std::size_t in = 0; in < inputs; ++in) row[in] += factor * from[in];
        bias.gradient[out] += factor;
      }
    }
    // Communication of this layer starts here and runs while the layers before it are computed.
    on_gradient_ready(2 * i + 1);
    on_gradient_ready(2 * i);

    if (i == 0) break;
    std::vector<Scalar> previous(batch_.size() * inputs);
    for (std::size_t sample = 0; sample < batch_.size(); ++sample) {
      Scalar* to = previous.data() + sample * inputs;
      for (std::size_t out = 0; out < outputs; ++out) {
        const Scalar factor = delta[sample * outputs + out];
        const Scalar* row = weight.value.data() + out * inputs;
        for (std::size_t in = 0; in < inputs; ++in) to[in] += factor * row[in];
      }
      const Scalar* activation = input.data() + sample * inputs;
      for (std::size_t in = 0; in < inputs; ++in) to[in] *= 1 - activation[in] * activation[in];
    }
    delta = std::move(previous);
  }
}

template class Network<float>;
template class Network<double>;

}  // namespace digits
