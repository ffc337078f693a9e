// Scenarios of nccl_rank: a Reducer's gradients on the device have the bits of the same on the CPU.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ddp/ddp.hpp>

#include "nccl_rank.hpp"
#include "nccl_rank_gradients.hpp"

namespace ddp::test {
namespace {

struct Layer {
  DType dtype;
  std::int64_t size;
};
// of each type several buckets; empty, of one element, and in the end one that delays nobody
const std::vector<Layer> kLayers{{DType::float32, 50},   {DType::float32, 3000}, {DType::float32, 1},
                                 {DType::int32, 40},     {DType::float32, 0},    {DType::float32, 700},
                                 {DType::float64, 300},  {DType::float32, 60},   {DType::bfloat16, 130},
                                 {DType::complex64, 20}, {DType::float32, 900}};
constexpr std::size_t kAlwaysUnused = 7;
constexpr std::size_t kMarkedTwice = 5;

std::size_t size_bytes(const Layer& layer) { return static_cast<std::size_t>(layer.size) * size_of(layer.dtype); }

/// Halves of even integers are exact, so that it does not matter when they are divided.
Bytes gradient_of(const Layer& layer, int rank, int step, std::size_t index) {
  Bytes bytes(size_bytes(layer));
  const DType part = component_of(layer.dtype);
  for (std::size_t i = 0; i < bytes.size() / size_of(part); ++i) {
    const auto phase = static_cast<double>(i) * 0.731 + static_cast<double>(index) * 1.9 + rank * 2.3 + step * 0.61;
    const auto value = static_cast<float>(std::sin(phase) * (1 + 0.01 * static_cast<double>(i % 97)));
    const auto put = [&](auto each) { std::memcpy(bytes.data() + i * sizeof(each), &each, sizeof(each)); };
    if (part == DType::float32) put(value);
    if (part == DType::float64) put(static_cast<double>(value));
    if (part == DType::bfloat16) put(to_bfloat16(value));
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
  std::string name{};
};

/// A Reducer's parameters in a place, and what it takes to compute their gradients there.
class Training {
 public:
  Training(ProcessGroup& group, GradientPlace& place, const Case& how)
      : group_(group), place_(place), how_(how), reducer_(make()) {}

  Reducer& reducer() { return reducer_; }
  /// Its gradient is computed by this one of the two streams.
  static int producer_of(std::size_t index) { return static_cast<int>(index % 2); }
  void compute(std::size_t index, int step) {
    place_.write(gradient(index), gradient_of(kLayers[index], group_.rank(), step, index), producer_of(index));
  }
  void mark(std::size_t index) {
    const auto stream = place_.stream(producer_of(index));
    if (stream && producer_of(index) == 1) return reducer_.mark_ready(index, *stream);
    reducer_.mark_ready(index);
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
    reducer_.prepare_for_backward(known);
    place_.order(0, 1);  // the backward pass goes over to the other stream
    for (std::size_t place = 0; place < kLayers.size(); ++place) {
      const std::size_t index = (place * 7 + static_cast<std::size_t>(group_.rank())) % kLayers.size();
      if (unused(index, step)) continue;
      compute(index, step);
      mark(index);
      if (how_.graph == Graph::fixed && index == kMarkedTwice) mark(index);
    }
    reducer_.finalize();
  }
  void read_all() {
    for (std::size_t i = 0; i < kLayers.size(); ++i) {
      place_.read(gradient(i), size_bytes(kLayers[i]), producer_of(i));
    }
    place_.order(1, 0);
  }

 private:
  void* gradient(std::size_t index) {
    return how_.view ? reducer_.bucket_view(index).data() : memory_[kLayers.size() + index].get();
  }
  Reducer make() {
    for (int i = 0; i < 2; ++i) {
      for (const Layer& layer : kLayers) memory_.push_back(place_.allocate(size_bytes(layer)));
    }
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < kLayers.size(); ++i) {
      const auto at = [&](std::size_t memory) {
        return TensorView{memory_[memory].get(), kLayers[i].dtype, {kLayers[i].size}, place_.device()};
      };
      parameters.push_back({.name = fmt::format("layer{}", i), .value = at(i)});
      if (!how_.view) parameters.back().gradient = at(kLayers.size() + i);
    }
    ReducerOptions options;
    options.bucket_cap_bytes = 1000;
    options.gradient_as_bucket_view = how_.view;
    options.find_unused_parameters = how_.graph == Graph::find_unused;
    options.static_graph = how_.graph == Graph::fixed;
    options.comm_hook = how_.hook();
    options.reduce_dtype = how_.reduce_dtype;
    options.stream = place_.stream(0);
    if (how_.own_memory) options.allocator = [this](std::size_t bytes, Device) { return place_.allocate(bytes); };
    return Reducer(parameters, group_, options);
  }

  ProcessGroup& group_;
  GradientPlace& place_;
  const Case& how_;
  std::vector<std::shared_ptr<void>> memory_;  ///< of values, then of gradients
  Reducer reducer_;
};

/// Runs @p body in both places, which must read the same.
void compare(World& world, ProcessGroup& group, const Case& how, const std::function<void(Training&)>& body) {
  HostGradients host;
  DeviceGradients device(world.local_rank());
  for (GradientPlace* const place : {static_cast<GradientPlace*>(&host), static_cast<GradientPlace*>(&device)}) {
    Training training(group, *place, how);
    body(training);
  }
  const std::deque<Bytes>& wanted = host.finish();
  const std::deque<Bytes>& found = device.finish();
  check(wanted.size() == found.size(), how.name);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    check(wanted[i] == found[i], fmt::format("{}: step {}, gradient {} on the device differs from that on the CPU",
                                             how.name, i / kLayers.size(), i % kLayers.size()));
  }
}

std::vector<Case> all_cases() {
  struct Exchange {
    const char* name;
    std::function<std::shared_ptr<CommHook>()> hook;
    std::optional<DType> reduce_dtype;
  };
  const std::vector<Exchange> exchanges{
      {"average", [] { return std::shared_ptr<CommHook>{}; }, {}},
      {"all_reduce", all_reduce_hook, {}},
      {"float16", [] { return compress_hook(DType::float16); }, {}},
      {"bfloat16", [] { return compress_hook(DType::bfloat16); }, {}},
      {"wrapped", [] { return compress_wrapper(DType::float16, post_local_sgd_hook(100)); }, {}},
      {"noop", noop_hook, {}},
      {"reduced in float32", [] { return std::shared_ptr<CommHook>{}; }, DType::float32},
      {"reduced in bfloat16", [] { return std::shared_ptr<CommHook>{}; }, DType::bfloat16}};
  std::vector<Case> cases;
  for (const bool view : {false, true}) {
    for (const Graph graph : {Graph::plain, Graph::find_unused, Graph::fixed}) {
      for (const Exchange& exchange : exchanges) {
        cases.push_back({.view = view,
                         .graph = graph,
                         .hook = exchange.hook,
                         .reduce_dtype = exchange.reduce_dtype,
                         .own_memory = cases.size() % 2 == 0,
                         .name = fmt::format("{}, graph {}, {}", view ? "view" : "no view", static_cast<int>(graph),
                                             exchange.name)});
      }
    }
  }
  return cases;
}

}  // namespace

void reduce(World& world) {
  ProcessGroup group = make_process_group(world);
  const char* const steps = std::getenv("DDP_TEST_STEPS");
  for (const Case& how : all_cases()) {
    compare(world, group, how, [&](Training& training) {
      for (int step = 0; step < (steps == nullptr ? 20 : std::atoi(steps)); ++step) {
        training.backward(step);
        training.read_all();
      }
    });
  }
  group.barrier().wait();
}

}  // namespace ddp::test
