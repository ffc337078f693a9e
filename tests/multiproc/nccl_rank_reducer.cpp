// Scenarios of nccl_rank: a Reducer's gradients on the device have the bits of the same on the CPU.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/ddp.hpp>

#include "nccl_rank.hpp"
#include "nccl_rank_case.hpp"

namespace ddp::test {
namespace {

constexpr PowerSgdOptions kLowRank{.rank = 2, .start_iteration = 0, .min_compression_rate = 1};

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
  for (const bool view : {false, true}) {
    for (const Graph graph : {Graph::plain, Graph::find_unused, Graph::fixed}) {
      cases.push_back({.view = view,
                       .graph = graph,
                       .hook = exact_average_hook,
                       .own_memory = cases.size() % 2 == 0,
                       .integers = false,
                       .complex = false,
                       .steps = steps > 0 ? steps : 3,
                       .name = fmt::format("{}, graph {}, exact", view ? "view" : "no view", static_cast<int>(graph))});
    }
    cases.push_back({.view = view,
                     .hook = none,
                     .own_memory = !view,
                     .optimizer = 1,
                     .steps = steps > 0 ? steps : 4,
                     .name = fmt::format("{}, optimizer", view ? "view" : "no view")});
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

/// Buckets are rebuilt when there are gradients of a step of no_sync, and not again.
void accumulate_and_rebuild(Training& training) {
  for (int step = 0; step < 4; ++step) {
    std::optional<Reducer::NoSync> alone;
    if (step == 1) alone.emplace(training.reducer().no_sync());
    training.backward(step);
    training.read_all();
  }
}

/// Ranks have different numbers of steps.
void run_out(Training& training, bool divide_by_initial_world_size, bool accumulates) {
  Join join({&training.reducer().joinable()}, {.divide_by_initial_world_size = divide_by_initial_world_size});
  for (int step = 0; step < 3 + 2 * training.group().rank(); ++step) {
    std::optional<Reducer::NoSync> alone;
    if (accumulates && step % 2 == 0) alone.emplace(training.reducer().no_sync());
    training.backward(step);
    training.read_all();
  }
  join.finish();
}

/// A program's own.
class HostHook final : public CommHook {
 public:
  std::string name() const override { return "host"; }
  BucketExchange start(const GradientBucket&, ProcessGroup&) override {
    return [] {};
  }
};

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
  if (group.size() == 1) average_rows(world, group);
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
    how.optimizer = 5;
    how.hook = noop_hook;  // so that no operation keeps buckets that are rebuilt while the optimizer is busy
    compare(world, group, how, take_steps);
    how.optimizer = 0;
    // what is kept of parameters moves with their buckets
    how.hook = [view] { return view ? top_k_hook(0.2) : power_sgd_hook(kLowRank); };
    compare(world, group, how, take_steps);
    for (const bool initial : {false, true}) {
      how = {.view = view, .integers = initial, .name = fmt::format("joined, view {}, all ranks {}", view, initial)};
      if (initial) how.hook = [] { return compress_hook(DType::float16); };
      compare(world, group, how, [initial](Training& training) { run_out(training, initial, false); });
    }
    how = {.view = view,
           .hook = exact_average_hook,
           .own_memory = view,
           .integers = false,
           .complex = false,
           .name = fmt::format("exact, view {}", view)};
    compare(world, group, how, accumulate_and_rebuild);
    compare(world, group, how, [](Training& training) { run_out(training, true, true); });
    how.graph = Graph::find_unused;
    compare(world, group, how, accumulate);
  }
  average_rows(world, group);
  DeviceGradients place(world.local_rank());
  const auto memory = place.allocate(40);
  const auto make = [&](const std::shared_ptr<CommHook>& hook) {
    const TensorView value{memory.get(), DType::float32, {10}, place.device()};
    Reducer({{.name = "weight", .value = value}}, group, {.comm_hook = hook, .stream = place.stream(0)});
  };
  const auto optimizer = [](std::shared_ptr<CommHook> inner) {
    return optimizer_hook([](std::size_t, const TensorView&) {}, std::move(inner));
  };
  must_be_refused([&] { make(std::make_shared<HostHook>()); }, "'weight' is on a CUDA device, where the hook 'host'");
  must_be_refused([&] { make(optimizer(std::make_shared<HostHook>())); }, "takes no gradients");
  must_be_refused([&] { make(compress_wrapper(DType::float16, optimizer(std::make_shared<HostHook>()))); },
                  "serves_cuda()");
  make(noop_hook());
  const Case integers;
  Training with_integers(group, place, integers);
  must_be_refused([&] { Join({&with_integers.reducer().joinable()}, {.divide_by_initial_world_size = false}); },
                  "of 16 bits or more can be divided by the number of all ranks only");
  must_be_refused([&] { with_integers.reducer().mark_ready(0, {.handle = nullptr}); }, "no backward pass");
  with_integers.reducer().prepare_for_backward();
  must_be_refused([&] { with_integers.reducer().mark_ready(0, {.handle = nullptr}); },
                  "its producer is a stream of another device");
  place.finish();  // what it is made of goes now
  group.barrier().wait();
}

}  // namespace ddp::test
