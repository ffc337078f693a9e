#include "digits/cuda/network.hpp"

#include <numeric>

#include <fmt/format.h>
#include <ddp/error.hpp>

namespace digits::cuda {

DeviceNetwork::DeviceNetwork(Gpu& gpu, std::span<const std::size_t> widths, std::uint64_t seed, std::size_t max_batch)
    : gpu_(gpu), max_batch_(max_batch) {
  std::vector<float> values;
  const Network<float> start(widths, seed);
  for (const NetworkParameter<float>& parameter : start.parameters()) {
    values.insert(values.end(), parameter.value.begin(), parameter.value.end());
  }
  parameter_count_ = values.size();
  values_ = gpu_.allocate<float>(parameter_count_);
  gradients_ = gpu_.allocate<float>(parameter_count_);
  velocities_ = gpu_.allocate<float>(parameter_count_);
  gpu_.upload(values_, std::span<const float>(values));
  std::size_t first = 0;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    layers_.push_back({.inputs = static_cast<std::uint32_t>(widths[i]),
                       .outputs = static_cast<std::uint32_t>(widths[i + 1]),
                       .first = first,
                       .result = gpu_.allocate<float>(max_batch * widths[i + 1]),
                       .delta = gpu_.allocate<float>(max_batch * widths[i + 1])});
    first += layers_.back().parameters();
  }
  inputs_ = gpu_.allocate<float>(max_batch * widths[0]);
  labels_ = gpu_.allocate<std::uint8_t>(max_batch);
  loss_ = gpu_.allocate<float>(max_batch);
  correct_ = gpu_.allocate<std::uint8_t>(max_batch);
  gpu_.wait();  // values may go
}

Network<float>::Outcome DeviceNetwork::forward(const Batch<float>& batch) {
  if (batch.size() > max_batch_ || batch.inputs.size() != batch.size() * layers_[0].inputs) {
    throw ddp::Error{{.code = ddp::ErrorCode::invalid_argument,
                      .attempted = "computing a batch on a CUDA device",
                      .cause = fmt::format("it has {} samples with {} inputs together; at most {} samples of {} fit",
                                           batch.size(), batch.inputs.size(), max_batch_, layers_[0].inputs)}};
  }
  samples_ = static_cast<std::uint32_t>(batch.size());
  gpu_.upload(inputs_, std::span<const float>(batch.inputs));
  gpu_.upload(labels_, std::span<const std::uint8_t>(batch.labels));
  const float* input = inputs_;
  for (const Layer& layer : layers_) {
    const float* weight = values_ + layer.first;
    gpu_.run(LinearStep{.weight = weight,
                        .bias = weight + std::size_t{layer.inputs} * layer.outputs,
                        .input = input,
                        .result = layer.result,
                        .elements = samples_ * layer.outputs,
                        .inputs = layer.inputs,
                        .outputs = layer.outputs,
                        .hidden = &layer == &layers_.back() ? 0U : 1U});
    input = layer.result;
  }
  gpu_.run(SoftmaxStep{.scores = layers_.back().result,
                       .labels = labels_,
                       .loss = loss_,
                       .correct = correct_,
                       .elements = samples_,
                       .classes = layers_.back().outputs});
  std::vector<float> loss(samples_);
  std::vector<std::uint8_t> correct(samples_);
  gpu_.download(std::span(loss), loss_);
  gpu_.download(std::span(correct), correct_);
  return {.loss_sum = std::accumulate(loss.begin(), loss.end(), 0.0),
          .correct = std::accumulate(correct.begin(), correct.end(), std::size_t{0})};
}

void DeviceNetwork::backward(float scale, const std::function<void(std::size_t, std::size_t)>& on_layer) {
  float* delta = layers_.back().result;
  gpu_.run(ScoreGradientStep{.probabilities = delta,
                             .labels = labels_,
                             .elements = samples_ * layers_.back().outputs,
                             .classes = layers_.back().outputs,
                             .scale = scale});
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Layer& layer = layers_[i];
    const float* input = i == 0 ? inputs_ : layers_[i - 1].result;
    gpu_.run(WeightGradientStep{.delta = delta,
                                .input = input,
                                .gradient = gradients_ + layer.first,
                                .elements = layer.parameters(),
                                .samples = samples_,
                                .inputs = layer.inputs,
                                .outputs = layer.outputs});
    // Communication of this layer starts here and runs while the layers before it are computed.
    on_layer(layer.first, layer.parameters());
    if (i == 0) break;
    gpu_.run(InputGradientStep{.weight = values_ + layer.first,
                               .delta = delta,
                               .activation = input,
                               .result = layers_[i - 1].delta,
                               .elements = samples_ * layer.inputs,
                               .inputs = layer.inputs,
                               .outputs = layer.outputs});
    delta = layers_[i - 1].delta;
  }
}

void DeviceNetwork::update(float learning_rate, float momentum) {
  gpu_.run(UpdateStep{.value = values_,
                      .velocity = velocities_,
                      .gradient = gradients_,
                      .elements = static_cast<std::uint32_t>(parameter_count_),
                      .learning_rate = learning_rate,
                      .momentum = momentum});
}

}  // namespace digits::cuda
