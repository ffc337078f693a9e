// Steps of a Reducer with a communication hook, on gradients that every rank can compute for all others.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "rank_program/scenario.hpp"

namespace ddp::test {

using Shape = std::vector<std::int64_t>;
inline const std::vector<Shape> kShapes{{24, 20}, {24}, {30, 4, 5}, {1300}, {0}};

inline std::size_t size_of_shape(const Shape& shape) {
  return static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>{}));
}

/// What a rank computes. The same on all ranks, so that each knows what the others have.
using Gradient = std::function<float(int rank, int step, std::size_t parameter, std::size_t element)>;
/// Of each step and parameter.
using Outputs = std::vector<std::vector<std::vector<float>>>;

struct Run {
  std::vector<Shape> shapes = kShapes;
  int steps = 6;
  std::size_t cap_bytes = 2000;
  bool view = false;
  bool static_graph = false;
};

inline Outputs run(ProcessGroup& group, std::shared_ptr<CommHook> hook, const Gradient& gradient, const Run& how = {}) {
  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> gradients;
  for (const Shape& shape : how.shapes) {
    values.emplace_back(size_of_shape(shape), 1.0F);
    gradients.emplace_back(size_of_shape(shape));
  }
  std::vector<Parameter> list;
  for (std::size_t i = 0; i < values.size(); ++i) {
    list.push_back(
        {.name = fmt::format("layer{}", i),
         .value = {values[i].data(), DType::float32, how.shapes[i]},
         .gradient = how.view ? TensorView{} : TensorView{gradients[i].data(), DType::float32, how.shapes[i]}});
  }
  ReducerOptions options;
  options.bucket_cap_bytes = how.cap_bytes;
  options.comm_hook = std::move(hook);
  options.gradient_as_bucket_view = how.view;
  options.static_graph = how.static_graph;
  Reducer reducer(list, group, options);
  Outputs outputs;
  for (int step = 0; step < how.steps; ++step) {
    reducer.prepare_for_backward();
    for (std::size_t place = 0; place < list.size(); ++place) {
      const std::size_t index = (place + static_cast<std::size_t>(group.rank())) % list.size();
      float* const to = how.view ? static_cast<float*>(reducer.bucket_view(index).data()) : gradients[index].data();
      for (std::size_t i = 0; i < gradients[index].size(); ++i) to[i] = gradient(group.rank(), step, index, i);
      reducer.mark_ready(index);
    }
    reducer.finalize();
    for (std::size_t i = 0; i < gradients.size() && how.view; ++i) {
      std::copy_n(static_cast<const float*>(reducer.bucket_view(i).data()), gradients[i].size(), gradients[i].begin());
    }
    outputs.push_back(gradients);
  }
  return outputs;
}

/// No two of a parameter's elements are equal in size, and ranks differ.
inline float rough(int rank, int step, std::size_t parameter, std::size_t element) {
  const auto phase =
      static_cast<double>(element) * 0.7310 + static_cast<double>(parameter) * 1.9 + rank * 2.3 + step * 0.61;
  return static_cast<float>(std::sin(phase) * (1.0 + 0.013 * static_cast<double>(element % 97)) + 0.05 * rank);
}

}  // namespace ddp::test
