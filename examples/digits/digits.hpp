// Handwritten digits, and a small network that learns them. Only shard_of() and reducer_parameters() deal with other
// processes.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <ddp/reducer.hpp>

namespace digits {

inline constexpr std::size_t kPixels = 64;   ///< an image is 8 x 8, row by row
inline constexpr std::size_t kClasses = 10;  ///< labels are 0..9
inline constexpr int kDarkest = 16;          ///< grey values are 0..16

/// Images, of kPixels grey values each, and their labels.
struct Dataset {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  std::size_t size() const { return labels.size(); }
};

/// digits.csv beside the running program.
inline std::filesystem::path default_file() {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/exe", none).parent_path() / "digits.csv";
}

/// Reads lines of 64 grey values and a label, separated by commas. Throws std::runtime_error with the first malformed
/// line.
inline Dataset load(const std::filesystem::path& file) {
  Dataset dataset;
  std::ifstream lines{file};
  std::size_t number = 0;
  const auto refuse = [&](const std::string& cause) {
    throw std::runtime_error("reading digits from " + file.string() + ": " + cause + "; name a file with --data");
  };
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const char* at = line.data();
    const char* const end = at + line.size();
    for (std::size_t field = 0; field <= kPixels; ++field) {
      int value = -1;
      const auto [next, error] = std::from_chars(at, end, value);
      const bool last = field == kPixels;
      if (error != std::errc{} || value < 0 || value > (last ? 9 : kDarkest) || (next == end) != last ||
          (!last && *next != ',')) {
        refuse("line " + std::to_string(number) + " is not 64 numbers from 0 to 16 and one from 0 to 9, with commas");
      }
      (last ? dataset.labels : dataset.pixels).push_back(static_cast<std::uint8_t>(value));
      at = next + 1;
    }
  }
  if (dataset.size() == 0) refuse("the file cannot be read, or is empty");
  return dataset;
}

/// The numbers [0, count), shuffled: equal on all ranks, since they depend on the arguments alone. (The standard fixes
/// the values of std::mt19937_64, but not the result of std::shuffle.)
inline std::vector<std::size_t> shuffled_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 generator{seed + epoch * 0x9e3779b97f4a7c15U};
  for (std::size_t left = count; left > 1; --left) std::swap(order[left - 1], order[generator() % left]);
  return order;
}

/// Consecutive parts of @p order with @p batch_size > 0 samples each; the last may be smaller.
inline std::vector<std::span<const std::size_t>> global_batches(std::span<const std::size_t> order,
                                                                std::size_t batch_size) {
  std::vector<std::span<const std::size_t>> batches;
  for (std::size_t first = 0; first < order.size(); first += batch_size) {
    batches.push_back(order.subspan(first, std::min(batch_size, order.size() - first)));
  }
  return batches;
}

/// The part of @p batch that @p rank of @p world_size computes. Parts are in rank order, and their sizes differ by at
/// most one; with fewer samples than ranks, the last ranks have none but still take part in the step.
inline std::span<const std::size_t> shard_of(std::span<const std::size_t> batch, int rank, int world_size) {
  const auto [ranks, position] = std::pair{static_cast<std::size_t>(world_size), static_cast<std::size_t>(rank)};
  const auto [even, larger_parts] = std::pair{batch.size() / ranks, batch.size() % ranks};
  return batch.subspan(position * even + std::min(position, larger_parts), even + (position < larger_parts ? 1 : 0));
}

/// A network's input: scaled to [0, 1], kPixels per sample.
template <class Scalar>
struct Batch {
  std::vector<Scalar> inputs;
  std::vector<std::uint8_t> labels;
  std::size_t size() const { return labels.size(); }
};

template <class Scalar>
Batch<Scalar> make_batch(const Dataset& dataset, std::span<const std::size_t> samples) {
  Batch<Scalar> batch;
  for (const std::size_t sample : samples) {
    for (const auto grey : std::span{dataset.pixels}.subspan(sample * kPixels, kPixels)) {
      batch.inputs.push_back(static_cast<Scalar>(grey) / Scalar{kDarkest});
    }
    batch.labels.push_back(dataset.labels[sample]);
  }
  return batch;
}

template <class Scalar>
struct NetworkParameter {
  std::string name;                 ///< "layer2.weight"
  std::vector<std::int64_t> shape;  ///< weights: outputs x inputs; biases: outputs
  std::vector<Scalar> value;
  std::vector<Scalar> gradient;
  std::vector<Scalar> velocity;
};

/// Layers of tanh(weight * x + bias); the last one has softmax and cross-entropy instead of tanh.
template <class Scalar>
class Network {
 public:
  /// @param widths inputs, hidden layers, outputs. Weights are uniform in +-sqrt(6 / (inputs + outputs)) (Glorot,
  /// Bengio 2010).
  Network(std::span<const std::size_t> widths, std::uint64_t seed) : results_(widths.size() - 1) {
    std::mt19937_64 generator{seed};
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      const auto [inputs, outputs] = std::pair{widths[i], widths[i + 1]};
      const double bound = std::sqrt(6.0 / static_cast<double>(inputs + outputs));
      const std::string name = "layer" + std::to_string(i + 1);
      const auto rows = static_cast<std::int64_t>(outputs);
      add(name + ".weight", {rows, static_cast<std::int64_t>(inputs)}, inputs * outputs);
      for (Scalar& value : parameters_.back().value) {
        value = static_cast<Scalar>((static_cast<double>(generator() >> 11U) * 0x1p-52 - 1) * bound);
      }
      add(name + ".bias", {rows}, outputs);
    }
  }

  /// Weight and bias of each layer, the first layer first.
  std::vector<NetworkParameter<Scalar>>& parameters() { return parameters_; }
  const std::vector<NetworkParameter<Scalar>>& parameters() const { return parameters_; }

  struct Outcome {
    double loss_sum = 0;      ///< cross-entropy in nats, summed over the batch
    std::size_t correct = 0;  ///< samples whose most probable class is their label
  };

  /// Computes the class probabilities, and keeps what backward() needs. The batch may be empty.
  Outcome forward(Batch<Scalar> batch) {
    batch_ = std::move(batch);
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const auto [weight, bias] = std::pair{parameters_[2 * i].value.data(), parameters_[2 * i + 1].value.data()};
      const auto [inputs, outputs] = sizes(i);
      results_[i].resize(batch_.size() * outputs);
      for (std::size_t at = 0; at < results_[i].size(); ++at) {
        const Scalar* const from = input_of(i).data() + at / outputs * inputs;
        const Scalar sum = std::inner_product(from, from + inputs, weight + at % outputs * inputs, bias[at % outputs]);
        results_[i][at] = i + 1 < results_.size() ? std::tanh(sum) : sum;
      }
    }
    Outcome outcome;
    const std::size_t classes = sizes(results_.size() - 1).second;
    for (std::size_t sample = 0; sample < batch_.size(); ++sample) {
      const std::span scores = std::span{results_.back()}.subspan(sample * classes, classes);
      const auto best = std::max_element(scores.begin(), scores.end());
      outcome.correct += best - scores.begin() == batch_.labels[sample] ? 1U : 0U;
      const Scalar largest = *best;  // subtracted to avoid overflow
      const Scalar label_score = scores[batch_.labels[sample]] - largest;
      for (Scalar& score : scores) score = std::exp(score - largest);
      const Scalar sum = std::accumulate(scores.begin(), scores.end(), Scalar{0});
      for (Scalar& score : scores) score /= sum;
      outcome.loss_sum += static_cast<double>(std::log(sum) - label_score);
    }
    return outcome;
  }

  /// Writes the gradient of @p scale times the summed loss of the last forward() into the parameters, from the last
  /// layer to the first, and calls ready(index) as soon as a parameter's gradient is final.
  template <class Ready>
  void backward(Scalar scale, Ready ready) {
    std::vector<Scalar> delta = results_.back();  // derivative with respect to a layer's sums
    for (std::size_t sample = 0; sample < batch_.size(); ++sample) {
      delta[sample * sizes(results_.size() - 1).second + batch_.labels[sample]] -= 1;
    }
    for (Scalar& value : delta) value *= scale;

    for (std::size_t i = results_.size(); i-- > 0;) {
      const auto [inputs, outputs] = sizes(i);
      NetworkParameter<Scalar>& weight = parameters_[2 * i];
      NetworkParameter<Scalar>& bias = parameters_[2 * i + 1];
      std::fill(weight.gradient.begin(), weight.gradient.end(), Scalar{0});
      std::fill(bias.gradient.begin(), bias.gradient.end(), Scalar{0});
      for (std::size_t at = 0; at < delta.size(); ++at) {
        const Scalar* const from = input_of(i).data() + at / outputs * inputs;
        Scalar* const row = weight.gradient.data() + at % outputs * inputs;
        for (std::size_t in = 0; in < inputs; ++in) row[in] += delta[at] * from[in];
        bias.gradient[at % outputs] += delta[at];
      }
      ready(2 * i + 1);  // this layer's gradients can travel while those of earlier layers are computed
      ready(2 * i);
      if (i == 0) break;
      std::vector<Scalar> previous(batch_.size() * inputs);
      for (std::size_t at = 0; at < delta.size(); ++at) {
        Scalar* const to = previous.data() + at / outputs * inputs;
        const Scalar* const row = weight.value.data() + at % outputs * inputs;
        for (std::size_t in = 0; in < inputs; ++in) to[in] += delta[at] * row[in];
      }
      for (std::size_t at = 0; at < previous.size(); ++at) previous[at] *= 1 - input_of(i)[at] * input_of(i)[at];
      delta = std::move(previous);
    }
  }

  /// Gradient descent with momentum, as in PyTorch's SGD. Equal gradients keep the ranks equal.
  void update(Scalar learning_rate, Scalar momentum) {
    for (NetworkParameter<Scalar>& parameter : parameters_) {
      for (std::size_t i = 0; i < parameter.value.size(); ++i) {
        parameter.velocity[i] = momentum * parameter.velocity[i] + parameter.gradient[i];
        parameter.value[i] -= learning_rate * parameter.velocity[i];
      }
    }
  }

 private:
  void add(std::string name, std::vector<std::int64_t> shape, std::size_t count) {
    const std::vector<Scalar> zeros(count);
    parameters_.push_back({std::move(name), std::move(shape), zeros, zeros, zeros});
  }
  /// Inputs and outputs of a layer.
  std::pair<std::size_t, std::size_t> sizes(std::size_t layer) const {
    const auto& shape = parameters_[2 * layer].shape;
    return {static_cast<std::size_t>(shape[1]), static_cast<std::size_t>(shape[0])};
  }
  const std::vector<Scalar>& input_of(std::size_t layer) const {
    return layer == 0 ? batch_.inputs : results_[layer - 1];
  }

  std::vector<NetworkParameter<Scalar>> parameters_;  ///< of layer i: weight at 2 i, bias at 2 i + 1
  std::vector<std::vector<Scalar>> results_;          ///< of each layer; of the last one: probabilities
  Batch<Scalar> batch_;                               ///< the last forward()'s
};

/// A network as libddp sees it: names, values and gradients in the network's own order, so that Network::backward()'s
/// indices are Reducer::mark_ready()'s. The result is views: the network must outlive it.
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
