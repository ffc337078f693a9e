// A Reducer's parameters on the CPU or on a device, and steps with them.
#pragma once

#include <ddp/ddp.hpp>

#include "nccl_rank_gradients.hpp"

namespace ddp::test {

struct Layer {
  DType dtype;
  std::int64_t size;
  std::int64_t rows = 1;  ///< more: a matrix
};
// among them one that is empty, and one of one element; matrices come into one bucket when those are rebuilt
inline const std::vector<Layer> kLayers{{DType::float32, 50, 10}, {DType::float32, 3000, 60}, {DType::int32, 40},
                                        {DType::float32, 0},      {DType::float32, 700, 20},  {DType::float64, 300},
                                        {DType::bfloat16, 130},   {DType::complex64, 20},     {DType::float32, 60, 6},
                                        {DType::float32, 1}};
inline constexpr std::size_t kAlwaysUnused = 4;
inline constexpr std::size_t kMarkedTwice = 1;

inline std::vector<std::int64_t> shape_of(const Layer& layer) {
  if (layer.rows == 1) return {layer.size};
  return {layer.rows, layer.size / layer.rows};
}

inline std::size_t size_bytes(const Layer& layer) {
  return static_cast<std::size_t>(layer.size) * size_of(layer.dtype);
}

/// Halves of even integers are exact, so that it does not matter when they are divided.
inline Bytes gradient_of(const Layer& layer, int rank, int step, std::size_t index) {
  Bytes bytes(size_bytes(layer));
  const DType part = component_of(layer.dtype);
  for (std::size_t i = 0; i < bytes.size() / size_of(part); ++i) {
    const auto phase = static_cast<double>(i) * 0.731 + static_cast<double>(index) * 1.9 + rank * 2.3 + step * 0.61;
    const auto value = static_cast<float>(std::sin(phase) * (1 + 0.01 * static_cast<double>(i % 97)));
    const auto put = [&](auto each) { std::memcpy(bytes.data() + i * sizeof(each), &each, sizeof(each)); };
    if (part == DType::float32) put(value);
    if (part == DType::float64) put(static_cast<double>(value));
    if (part == DType::bfloat16) put(to_bfloat16(value));
    if (part == DType::float16) put(to_half(value));
    if (part == DType::int32) put(2 * static_cast<std::int32_t>(100 * value));
  }
  return bytes;
}

enum class Graph { plain, find_unused, fixed };

struct Case {
  bool view = false;
  Graph graph = Graph::plain;
  std::function<std::shared_ptr<CommHook>()> hook = [] { return std::shared_ptr<CommHook>{}; };
  std::optional<DType> reduce_dtype{};
  bool own_memory = true;  ///< else the group's
  bool loose = false;      ///< gradients are in other memory in each step
  bool integers = true;    ///< among the gradients
  bool complex = true;     ///< the same
  int optimizer = 0;       ///< reads each average so often, as it comes
  int steps = 20;
  std::string name{};
};

/// A Reducer's parameters in a place, and what it takes to compute their gradients there.
class Training {
 public:
  Training(ProcessGroup& group, GradientPlace& place, const Case& how)
      : group_(group), place_(place), how_(how), reducer_(make()) {}

  Reducer& reducer() { return reducer_; }
  ProcessGroup& group() { return group_; }
  const Case& how() const { return how_; }
  /// Its gradient is computed by this one of the two streams. The second one has more to do, so that it is later.
  static int producer_of(std::size_t index) { return index % 3 == 0 ? 0 : 1; }
  void compute(std::size_t index, int step) {
    place_.write(gradient(index), gradient_of(layer(index), group_.rank(), step, index), producer_of(index));
  }
  void mark(std::size_t index) {
    const TensorView there{gradient(index), layer(index).dtype, shape_of(layer(index)), place_.device()};
    const auto stream = place_.stream(producer_of(index));
    if (!stream || producer_of(index) == 0) {
      return how_.loose ? reducer_.mark_ready(index, there) : reducer_.mark_ready(index);
    }
    how_.loose ? reducer_.mark_ready(index, there, *stream) : reducer_.mark_ready(index, *stream);
  }
  bool unused(std::size_t index, int step) const {
    if (how_.graph == Graph::plain) return false;
    if (index == kAlwaysUnused) return true;
    return how_.graph == Graph::find_unused && index % 3 == 1 && (step + group_.rank()) % 3 == 0;
  }
  void backward(int step) {
    std::vector<std::size_t> known;
    for (std::size_t i = 0; i < kLayers.size() && how_.graph == Graph::find_unused; i += 2) {
      if (unused(i, step)) known.push_back(i);
    }
    turn_ = step % 2;
    reducer_.prepare_for_backward(known);
    fork();
    for (std::size_t place = 0; place < kLayers.size(); ++place) {
      const std::size_t index = (place * 7 + static_cast<std::size_t>(group_.rank())) % kLayers.size();
      if (unused(index, step)) continue;
      compute(index, step);
      mark(index);
      if (how_.graph == Graph::fixed && index == kMarkedTwice) mark(index);
    }
    reducer_.finalize();
  }
  /// The program goes over to the other stream.
  void fork() { place_.order(0, 1); }
  void read_all() {
    for (std::size_t i = 0; i < kLayers.size(); ++i) {
      place_.read(gradient(i), size_bytes(layer(i)), producer_of(i));
    }
    place_.order(1, 0);
  }

 private:
  Layer layer(std::size_t index) const {
    Layer found = kLayers[index];
    if (found.dtype == DType::int32 && !how_.integers) found.dtype = DType::float32;
    if (found.dtype == DType::complex64 && !how_.complex) found.dtype = DType::float16;
    return found;
  }
  void* gradient(std::size_t index) {
    if (how_.view && !how_.loose) return reducer_.bucket_view(index).data();
    return memory_[(1 + (how_.loose ? turn_ : 0)) * kLayers.size() + index].get();
  }
  Reducer make() {
    for (int i = 0; i < 3; ++i) {
      for (std::size_t each = 0; each < kLayers.size(); ++each)
        memory_.push_back(place_.allocate(size_bytes(layer(each))));
    }
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < kLayers.size(); ++i) {
      const auto at = [&](std::size_t memory) {
        return TensorView{memory_[memory].get(), layer(i).dtype, shape_of(layer(i)), place_.device()};
      };
      parameters.push_back({.name = fmt::format("layer{}", i), .value = at(i)});
      if (!how_.view && !how_.loose) parameters.back().gradient = at(kLayers.size() + i);
    }
    ReducerOptions options;
    options.bucket_cap_bytes = 1000;
    options.gradient_as_bucket_view = how_.view;
    options.find_unused_parameters = how_.graph == Graph::find_unused;
    options.static_graph = how_.graph == Graph::fixed;
    options.comm_hook = how_.hook();
    if (how_.optimizer > 0) options.comm_hook = optimizer_hook(optimizer(), options.comm_hook);
    options.reduce_dtype = how_.reduce_dtype;
    options.stream = place_.stream(0);
    if (how_.own_memory) options.allocator = [this](std::size_t bytes, Device) { return place_.allocate(bytes); };
    return Reducer(parameters, group_, options);
  }

  OptimizerStep optimizer() {
    return [this](std::size_t, const TensorView& average) {
      for (int i = 0; i < how_.optimizer; ++i) place_.read(average.data(), average.size_bytes(), 0);
    };
  }

  ProcessGroup& group_;
  GradientPlace& place_;
  const Case& how_;
  std::size_t turn_ = 0;                       ///< of loose gradients
  std::vector<std::shared_ptr<void>> memory_;  ///< of values, then of gradients, twice
  Reducer reducer_;
};

}  // namespace ddp::test
