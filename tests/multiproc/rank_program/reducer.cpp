// The gradient averaging engine among real ranks.
#include <deque>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "rank_program/scenario.hpp"

namespace ddp::test {
namespace {

/// Parameters with their memory: value i of rank r holds 100 r + i, gradient i of rank r in step s holds (r + 1) (i +
/// 1) s.
class Model {
 public:
  Model(int rank, const std::vector<std::size_t>& sizes) : rank_(rank) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      values_.emplace_back(sizes[i], static_cast<float>(100 * rank + static_cast<int>(i)));
      gradients_.emplace_back(sizes[i], 0.0F);
    }
  }
  std::vector<Parameter> parameters() {
    std::vector<Parameter> list;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      list.push_back({.name = fmt::format("layer{}.weight", i), .value = values_[i], .gradient = gradients_[i]});
    }
    return list;
  }
  void compute_gradient(std::size_t index, int step) {
    const auto value = static_cast<float>((rank_ + 1) * (static_cast<int>(index) + 1) * step);
    gradients_[index].assign(gradients_[index].size(), value);
  }
  void check_average(std::size_t index, int step, int ranks) const {
    const double wanted = (ranks + 1) / 2.0 * static_cast<double>(index + 1) * step;
    for (const float value : gradients_[index]) {
      // W terms, each rounded once when it is divided, and their sums: a few units of 2^-24 each
      if (std::abs(value - wanted) > 1e-6 * wanted)
        check(false, fmt::format("gradient {} is {}, not {}", index, value, wanted));
    }
  }
  void check_values(int rank) const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      for (const float value : values_[i]) {
        check(value == static_cast<float>(100 * rank + static_cast<int>(i)), "the parameters are not rank 0's");
      }
    }
  }
  std::size_t size() const { return values_.size(); }

 private:
  int rank_;
  std::deque<std::vector<float>> values_;
  std::deque<std::vector<float>> gradients_;
};

const std::vector<std::size_t> kSizes{50, 200, 1, 3000, 0, 70, 1000, 25};

/// The last rank computes for 100 ms longer than the others.
void check_straggler(World& world, ProcessGroup& group) {
  Model model(world.rank(), kSizes);
  Reducer reducer(model.parameters(), group, {.log = {.find_straggler = true}});
  reducer.trace(1);
  const int last = world.world_size() - 1;
  int found = 0;
  for (int step = 0; step < 3; ++step) {
    reducer.prepare_for_backward();
    if (world.rank() == last) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (std::size_t index = 0; index < model.size(); ++index) reducer.mark_ready(index);
    reducer.finalize();
    const DdpLog log = reducer.log();
    found += log.straggler_rank == last ? 1 : 0;
  }
  check(found > 0, "the rank that comes last was not found");  // a busy machine may hold up another one once
  check(reducer.trace_json().find(world.world_size() > 1 ? "\"launched\"" : "process_name") != std::string::npos,
        "buckets were not traced");
}

}  // namespace

void take_steps(World& world, Arguments arguments) {
  check(arguments.size() == 1, "steps SECONDS");
  const Deadline end = Deadline::after(std::chrono::seconds(std::stoi(arguments[0])));
  ProcessGroup group = make_process_group(world);
  Model model(world.rank(), kSizes);
  Reducer reducer(model.parameters(), group, {.log = {.sample_rate = 1, .find_straggler = true}});
  std::vector<std::int32_t> go_on{1};
  while (go_on[0] != 0) {
    reducer.prepare_for_backward();
    std::this_thread::sleep_for(std::chrono::milliseconds(world.rank() == world.world_size() - 1 ? 25 : 5));
    for (std::size_t index = 0; index < model.size(); ++index) reducer.mark_ready(index);
    reducer.finalize();
    go_on[0] = end.expired() ? 0 : 1;
    group.broadcast(go_on, 0).wait();
  }
}

void differ_in_parameters(World& world, Arguments arguments) {
  check(arguments.size() == 2, "parameters WHAT RANK");
  ProcessGroup group = make_process_group(world);
  const bool odd_one = world.rank() == std::stoi(arguments[1]);
  Model model(world.rank(), kSizes);
  std::vector<Parameter> parameters = model.parameters();
  std::vector<double> doubles(3000);
  if (odd_one) {
    Parameter& victim = parameters[3];
    if (arguments[0] == "count") parameters.pop_back();
    if (arguments[0] == "none") parameters.clear();
    if (arguments[0] == "name") victim.name = "layer3.bias";
    if (arguments[0] == "shape") {
      victim.value = TensorView{victim.value.data(), DType::float32, {30, 100}};
      victim.gradient = TensorView{victim.gradient.data(), DType::float32, {30, 100}};
    }
    if (arguments[0] == "dtype") victim.value = victim.gradient = TensorView(doubles);
    if (arguments[0] == "gradient") victim.gradient = victim.gradient.slice(0, 10);
    if (arguments[0] == "strides") victim.strides = {1, 30};
    if (arguments[0] == "requires") victim.requires_gradient = false;
  }
  if (arguments[0] == "memory" && odd_one) parameters[6].gradient = parameters[3].gradient.slice(0, 1000);
  ReducerOptions options;
  if (arguments[0] == "buffer") options.buffers = {"mean float32[3]", odd_one ? "count int64[1]" : "count int64[]"};
  if (arguments[0] == "option") options.static_graph = odd_one;
  Reducer reducer(parameters, group, options);
}

void run_reducer(World& world) {
  ProcessGroup group = make_process_group(world);
  Model model(world.rank(), kSizes);
  Reducer reducer(model.parameters(), group, {.bucket_cap_bytes = 1000});
  model.check_values(0);
  const auto initial = reducer.buckets();
  check(initial.size() > 2 && initial.front().back() == kSizes.size() - 1, "buckets do not start with the last layer");

  for (int step = 1; step <= 4; ++step) {
    reducer.prepare_for_backward();
    if (step < 3) {
      // another order on every rank, as when ranks take different branches
      for (std::size_t i = 0; i < model.size(); ++i) {
        const std::size_t index = (i * 3 + static_cast<std::size_t>(world.rank())) % model.size();
        model.compute_gradient(index, step);
        reducer.mark_ready(index);
      }
    } else {
      std::vector<std::thread> threads;
      for (std::size_t first = 0; first < 3; ++first) {
        threads.emplace_back([&, first] {
          for (std::size_t index = first; index < model.size(); index += 3) {
            model.compute_gradient(index, step);
            reducer.mark_ready(index);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    reducer.finalize();
    for (std::size_t i = 0; i < model.size(); ++i) model.check_average(i, step, world.world_size());
    check(reducer.stats().iteration == static_cast<std::uint64_t>(step), "steps are miscounted");
    check(
        reducer.stats().overlap <= reducer.stats().communication && reducer.stats().overlap <= reducer.stats().backward,
        "the overlap is longer than what overlaps");
  }
  check_straggler(world, group);
  // rebuilt after the first step, in the order in which rank 0's gradients came: 0, 3, 6, 1, ...
  check(reducer.buckets() != initial && reducer.buckets().front().front() == 0, "buckets were not rebuilt");

  const auto refused = [](const std::string& what, const std::string& wanted, auto&& function) {
    try {
      function();
    } catch (const Error& error) {
      check(error.code() == ErrorCode::invalid_argument && std::string(error.what()).find(wanted) != std::string::npos,
            fmt::format("{}: {}", what, error.what()));
      return;
    }
    check(false, what + " was accepted");
  };
  refused("marking outside a step", "no backward pass", [&] { reducer.mark_ready(0); });
  refused("finalizing outside a step", "none has been started", [&] { reducer.finalize(); });
  reducer.prepare_for_backward();
  refused("preparing twice", "not finalized", [&] { reducer.prepare_for_backward(); });
  refused("an index outside", "no parameter 99", [&] { reducer.mark_ready(99); });
  model.compute_gradient(5, 1);
  reducer.mark_ready(5);
  refused("marking twice", "layer5.weight", [&] { reducer.mark_ready(5); });
  // without the first bucket none is launched: nothing is under way when this rank leaves
  refused("a gradient that is missing", "'layer0.weight'", [&] {
    for (std::size_t i = 1; i < model.size(); ++i) {
      if (i != 5) reducer.mark_ready(i);
    }
    reducer.finalize();
  });
}

}  // namespace ddp::test
