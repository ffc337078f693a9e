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
  std::int64_t rows = 1;  ///< more: a matrix
};
// among them one that is empty, and one of one element; matrices come into one bucket when those are rebuilt
const std::vector<Layer> kLayers{{DType::float32, 50, 10}, {DType::float32, 3000, 60}, {DType::int32, 40},
                                 {DType::float32, 0},      {DType::float32, 700, 20},  {DType::float64, 300},
                                 {DType::bfloat16, 130},   {DType::complex64, 20},     {DType::float32, 60, 6},
                                 {DType::float32, 1}};
constexpr std::size_t kAlwaysUnused = 4;
constexpr std::size_t kMarkedTwice = 1;
constexpr PowerSgdOptions kLowRank{.rank = 2, .start_iteration = 0, .min_compression_rate = 1};

std::vector<std::int64_t> shape_of(const Layer& layer) {
  if (layer.rows == 1) return {layer.size};
  return {layer.rows, layer.size / layer.rows};
}

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
  bool loose = false;      ///< gradients are in other memory in each step
  bool integers = true;    ///< among the gradients
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
    options.reduce_dtype = how_.reduce_dtype;
    options.stream = place_.stream(0);
    if (how_.own_memory) options.allocator = [this](std::size_t bytes, Device) { return place_.allocate(bytes); };
    return Reducer(parameters, group_, options);
  }

  ProcessGroup& group_;
  GradientPlace& place_;
  const Case& how_;
  std::size_t turn_ = 0;                       ///< of loose gradients
  std::vector<std::shared_ptr<void>> memory_;  ///< of values, then of gradients, twice
  Reducer reducer_;
};

/// Runs @p body in both places, which must read the same.
void compare(World& world, ProcessGroup& group, const Case& how, const std::function<void(Training&)>& body) {
  HostGradients host;
  DeviceGradients device(world.local_rank());
  for (GradientPlace* const place : {static_cast<GradientPlace*>(&host), static_cast<GradientPlace*>(&device)}) {
    Training training(group, *place, how);
    body(training);
    place->finish();
  }
  const std::deque<Bytes>& wanted = host.finish();
  const std::deque<Bytes>& found = device.finish();
  check(wanted.size() == found.size(), how.name);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    check(wanted[i] == found[i], fmt::format("{}: step {}, gradient {} on the device differs from that on the CPU",
                                             how.name, i / kLayers.size(), i % kLayers.size()));
  }
}

/// @param steps of each; 0: some.
std::vector<Case> all_cases(int steps) {
  struct Exchange {
    const char* name;
    std::function<std::shared_ptr<CommHook>()> hook;
    std::optional<DType> reduce_dtype;
    int steps;
  };
  const auto none = [] { return std::shared_ptr<CommHook>{}; };
  const std::vector<Exchange> exchanges{
      {"average", none, {}, 20},
      {"float16", [] { return compress_hook(DType::float16); }, {}, 4},
      {"bfloat16", [] { return compress_hook(DType::bfloat16); }, {}, 4},
      {"all_reduce", all_reduce_hook, {}, 2},
      {"wrapped", [] { return compress_wrapper(DType::float16, post_local_sgd_hook(100)); }, {}, 2},
      {"noop", noop_hook, {}, 2},
      {"reduced in float32", none, DType::float32, 3},
      {"reduced in bfloat16", none, DType::bfloat16, 3},
      {"8 bits a tensor", quantize_per_tensor_hook, {}, 3},
      {"8 bits a channel", quantize_per_channel_hook, {}, 3}};
  std::vector<Case> cases;
  for (const bool view : {false, true}) {
    for (const Graph graph : {Graph::plain, Graph::find_unused, Graph::fixed}) {
      for (const Exchange& exchange : exchanges) {
        cases.push_back({.view = view,
                         .graph = graph,
                         .hook = exchange.hook,
                         .reduce_dtype = exchange.reduce_dtype,
                         .own_memory = cases.size() % 2 == 0,
                         .loose = cases.size() % 5 == 4,
                         .steps = steps > 0 ? steps : exchange.steps,
                         .name = fmt::format("{}, graph {}, {}", view ? "view" : "no view", static_cast<int>(graph),
                                             exchange.name)});
      }
    }
  }
  // these need all parameters, and have other buckets in the second step, where they find what the first has left out
  PowerSgdOptions cold = kLowRank;
  cold.start_iteration = 1;
  cold.warm_start = false;
  const std::vector<Exchange> with_errors{
      {"top-k", [] { return top_k_hook(0.1); }, {}, 4},
      {"top-k of float16", [] { return compress_wrapper(DType::float16, top_k_hook(0.3)); }, {}, 3},
      {"PowerSGD", [] { return power_sgd_hook(kLowRank); }, {}, 4},
      {"cold PowerSGD", [cold] { return power_sgd_hook(cold); }, {}, 4},
      {"batched PowerSGD", [] { return batched_power_sgd_hook(kLowRank); }, {}, 4}};
  for (const Exchange& exchange : with_errors) {
    for (const bool view : {false, true}) {
      cases.push_back({.view = view,
                       .hook = exchange.hook,
                       .own_memory = !view,
                       .steps = steps > 0 ? steps : exchange.steps,
                       .name = fmt::format("{}, {}", view ? "view" : "no view", exchange.name)});
    }
  }
  return cases;
}

void take_steps(Training& training) {
  for (int step = 0; step < training.how().steps; ++step) {
    training.backward(step);
    training.read_all();
  }
}

/// Gradients of steps of no_sync, which count although nothing marks them afterwards, also in the buckets of another
/// group.
void accumulate(Training& training) {
  for (int step = 0; step < 3; ++step) {
    {
      const auto alone = training.reducer().no_sync();
      training.backward(2 * step);
    }
    if (step == 1) {
      // the program's stream is still busy when buckets are made, which takes a while
      for (int late = 0; late < 20; ++late) training.compute(0, late);
      training.reducer().change_group(training.group());
    }
    training.reducer().prepare_for_backward();
    training.reducer().finalize();
    training.fork();  // a step in which the other stream has computed nothing
    training.read_all();
  }
}

/// Ranks have different numbers of steps.
void run_out(Training& training, bool divide_by_initial_world_size) {
  Join join({&training.reducer().joinable()}, {.divide_by_initial_world_size = divide_by_initial_world_size});
  for (int step = 0; step < 3 + 2 * training.group().rank(); ++step) {
    training.backward(step);
    training.read_all();
  }
  join.finish();
}

void must_be_refused(const std::function<void()>& call, const std::string& why) {
  try {
    call();
  } catch (const Error& error) {
    return check(std::string(error.what()).find(why) != std::string::npos, error.what());
  }
  check(false, "it was not refused: " + why);
}

}  // namespace

void reduce(World& world, const std::string& steps) {
  ProcessGroup group = make_process_group(world);
  for (const Case& how : all_cases(std::stoi(steps))) compare(world, group, how, take_steps);
  group.barrier().wait();
}

void reduce_otherwise(World& world) {
  ProcessGroup group = make_process_group(world);
  for (const bool view : {false, true}) {
    Case how;
    for (const bool own_memory : {false, true}) {
      how = {.view = view,
             .graph = Graph::find_unused,
             .own_memory = own_memory,
             .name = fmt::format("accumulated, view {}, own memory {}", view, own_memory)};
      compare(world, group, how, accumulate);
    }
    how = {.view = view, .steps = 4, .name = fmt::format("late streams, view {}", view)};
    compare(world, group, how, take_steps);
    // what is kept of parameters moves with their buckets
    how.hook = [view] { return view ? top_k_hook(0.2) : power_sgd_hook(kLowRank); };
    compare(world, group, how, take_steps);
    for (const bool initial : {false, true}) {
      how = {.view = view, .integers = initial, .name = fmt::format("joined, view {}, all ranks {}", view, initial)};
      if (initial) how.hook = [] { return compress_hook(DType::float16); };
      compare(world, group, how, [initial](Training& training) { run_out(training, initial); });
    }
  }
  DeviceGradients place(world.local_rank());
  const auto memory = place.allocate(40);
  const auto make = [&](const std::shared_ptr<CommHook>& hook) {
    const TensorView value{memory.get(), DType::float32, {10}, place.device()};
    Reducer({{.name = "weight", .value = value}}, group, {.comm_hook = hook, .stream = place.stream(0)});
  };
  must_be_refused([&] { make(exact_average_hook()); }, "'weight' is on a CUDA device, where the hook 'exact average'");
  const auto optimizer = [] { return optimizer_hook([](std::size_t, const TensorView&) {}, top_k_hook(0.5)); };
  must_be_refused([&] { make(optimizer()); }, "takes no gradients");
  must_be_refused([&] { make(compress_wrapper(DType::float16, optimizer())); }, "serves_cuda()");
  make(noop_hook());
  const Case integers;
  Training with_integers(group, place, integers);
  must_be_refused([&] { Join({&with_integers.reducer().joinable()}, {.divide_by_initial_world_size = false}); },
                  "of 16 bits or more can be divided by the number of all ranks only");
  must_be_refused([&] { with_integers.reducer().mark_ready(0, {.device = {}, .handle = nullptr}); },
                  "no backward pass");
  with_integers.reducer().prepare_for_backward();
  must_be_refused([&] { with_integers.reducer().mark_ready(0, {.device = {}, .handle = nullptr}); },
                  "its producer is a stream of another device");
  place.finish();  // what it is made of goes now
  group.barrier().wait();
}

}  // namespace ddp::test
