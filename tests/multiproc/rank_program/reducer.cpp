// The gradient averaging engine among real ranks.
#include <array>
#include <cmath>
#include <deque>
#include <numeric>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "rank_program/scenario.hpp"

namespace ddp::test {
namespace {

/// Parameters with their memory: value i of rank r is 100 r + i, gradient i of rank r in step s is (r + 1) (i + 1) s.
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
      // W terms, each rounded once when divided, and their sums: a few units of 2^-24 each
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

/// The last rank computes 100 ms longer than the others.
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
  check(found > 0, "the rank that comes last was not found");  // a busy machine may delay another rank once
  check(reducer.trace_json().find(world.world_size() > 1 ? "\"exchange\"" : "process_name") != std::string::npos,
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
      // a different order on every rank, as when ranks take different branches
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
  // without the first bucket none is launched: nothing is in progress when this rank leaves
  refused("a gradient that is missing", "'layer0.weight'", [&] {
    for (std::size_t i = 1; i < model.size(); ++i) {
      if (i != 5) reducer.mark_ready(i);
    }
    reducer.finalize();
  });
}

// Ranks with different numbers of steps, compared with the same training in one process and double precision.

namespace {

constexpr std::array kUnevenSteps{3, 5, 9, 5};  // by rank
constexpr std::size_t kUnevenParameters = 4;
constexpr std::size_t kUnevenElements = 30;
constexpr double kRate = 0.1;

bool has_input(int rank, int step) { return kUnevenSteps.at(static_cast<std::size_t>(rank)) > step; }

/// The gradient of a rank whose parameter has this value.
double gradient_of(int rank, int step, std::size_t parameter, std::size_t i, double value) {
  return 0.3 * value + std::sin(static_cast<double>(i) + 3.0 * static_cast<double>(parameter) + rank + 0.4 * step);
}

struct UnevenMode {
  const char* name;
  bool initial = true;  ///< divide by the initial number of ranks
  bool view = false;
  bool find_unused = false;  ///< only ranks above 0 use parameter 1
  bool static_graph = false;
  bool accumulate = false;  ///< every second step is local
  bool hook = false;        ///< a hook with state that drops nothing
  bool exact = false;       ///< a hook that counts local steps, including those that other ranks take; accumulates
};

/// Shares its work with the other ranks, as a sharded optimizer does: one collective per step.
class CountingOptimizer final : public Joinable {
 public:
  explicit CountingOptimizer(ProcessGroup group) : group_(std::move(group)) {}
  ProcessGroup& join_group() override { return group_; }
  void enter_join(Join& /*unused*/) override {}
  void leave_join() noexcept override {}
  void shadow(JoinEvent event) override {
    if (event == JoinEvent::step) count(0);
  }
  void finish_join(int last) override { last_rank = last; }
  int count(std::int32_t own) {
    std::vector<std::int32_t> sum{own};
    group_.all_reduce(sum).wait();
    return sum[0];
  }
  int last_rank = -1;

 private:
  ProcessGroup group_;
};

/// A rank's final state.
struct Replica {
  std::array<std::vector<float>, kUnevenParameters> values;
  std::vector<float> buffer;
};

Replica train_unevenly(ProcessGroup& group, const UnevenMode& mode) {
  const int rank = group.rank();
  Replica replica;
  std::array<std::vector<float>, kUnevenParameters> gradients;
  std::vector<Parameter> list;
  for (std::size_t p = 0; p < kUnevenParameters; ++p) {
    replica.values[p].assign(kUnevenElements, static_cast<float>(p));
    gradients[p].resize(kUnevenElements);
    list.push_back({.name = fmt::format("layer{}", p), .value = replica.values[p]});
    if (!mode.view) list.back().gradient = gradients[p];
  }
  replica.buffer.assign(3, static_cast<float>(rank));
  ReducerOptions options;
  options.bucket_cap_bytes = 8 * kUnevenElements;
  options.gradient_as_bucket_view = mode.view;
  options.find_unused_parameters = mode.find_unused;
  options.static_graph = mode.static_graph;
  if (mode.hook) options.comm_hook = top_k_hook(1);
  if (mode.exact) options.comm_hook = exact_average_hook();
  Reducer reducer(list, group, options);
  CountingOptimizer optimizer(group);
  Join join({&reducer.joinable({replica.buffer}), &optimizer}, {.divide_by_initial_world_size = mode.initial});
  const int last = group.size() - 1;
  for (int step = 0; has_input(rank, step); ++step) {
    const bool local = mode.accumulate && step % 2 == 0;
    std::optional<Reducer::NoSync> alone;
    if (local) alone.emplace(reducer.no_sync());
    reducer.broadcast_buffers(std::array{TensorView{replica.buffer}});
    for (float& value : replica.buffer) value += static_cast<float>(rank + 1);
    reducer.prepare_for_backward();
    for (std::size_t place = 0; place < kUnevenParameters; ++place) {
      const std::size_t p = (place + static_cast<std::size_t>(rank)) % kUnevenParameters;
      auto* const gradient = mode.view ? static_cast<float*>(reducer.bucket_view(p).data()) : gradients[p].data();
      const bool first = !mode.accumulate || local;
      if (mode.find_unused && p == 1 && rank == 0) {
        if (first) std::fill_n(gradient, kUnevenElements, 0.0F);
        continue;
      }
      for (std::size_t i = 0; i < kUnevenElements; ++i) {
        const double own = gradient_of(rank, step, p, i, static_cast<double>(replica.values[p][i]));
        gradient[i] = static_cast<float>(own + (first ? 0 : static_cast<double>(gradient[i])));
      }
      reducer.mark_ready(p);
    }
    reducer.finalize();
    if (local) continue;
    int expected = 0;
    for (int each = 0; each <= last; ++each) expected += has_input(each, step) ? 1 : 0;
    check(optimizer.count(1) == expected, "another number of ranks takes part in the optimizer's step");
    for (std::size_t p = 0; p < kUnevenParameters; ++p) {
      const auto* const gradient = mode.view ? static_cast<float*>(reducer.bucket_view(p).data()) : gradients[p].data();
      for (std::size_t i = 0; i < kUnevenElements; ++i) {
        replica.values[p][i] -= static_cast<float>(kRate) * gradient[i];
      }
    }
  }
  join.finish();
  check(optimizer.last_rank == std::min(last, 2), "the last to join is another rank");
  // and once more, all at the same time: the Join has left no trace
  reducer.prepare_for_backward();
  for (std::size_t p = 0; p < kUnevenParameters; ++p) reducer.mark_ready(p);
  reducer.finalize();
  return replica;
}

/// The same training in one process. Active ranks have the same parameters.
void check_against_one_process(const Replica& replica, int ranks, const UnevenMode& mode) {
  std::array<std::array<double, kUnevenElements>, kUnevenParameters> values{};
  for (std::size_t p = 0; p < kUnevenParameters; ++p) values[p].fill(static_cast<double>(p));
  std::vector<double> buffers;
  for (int rank = 0; rank < ranks; ++rank) buffers.push_back(rank);
  std::vector<std::array<std::array<double, kUnevenElements>, kUnevenParameters>> sums(static_cast<std::size_t>(ranks));
  bool exchanged = true;  // buffers stay after a local step
  int highest = ranks - 1;
  const int steps = *std::max_element(kUnevenSteps.begin(), kUnevenSteps.begin() + ranks);
  for (int step = 0; step < steps; ++step) {
    const bool local = mode.accumulate && step % 2 == 0;
    int takes_part = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      if (!has_input(rank, step)) continue;
      ++takes_part;
      highest = rank;
    }
    const double root = buffers[static_cast<std::size_t>(highest)];
    for (int rank = 0; rank < ranks; ++rank) {
      auto& buffer = buffers[static_cast<std::size_t>(rank)];
      if (exchanged) buffer = root;
      if (has_input(rank, step)) buffer += rank + 1;
    }
    exchanged = !local;
    for (std::size_t p = 0; p < kUnevenParameters; ++p) {
      for (std::size_t i = 0; i < kUnevenElements; ++i) {
        double mean = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          auto& sum = sums[static_cast<std::size_t>(rank)][p][i];
          if (!mode.accumulate || local) sum = 0;
          const bool takes = has_input(rank, step);
          if (takes && !(mode.find_unused && p == 1 && rank == 0)) sum += gradient_of(rank, step, p, i, values[p][i]);
          if (mode.exact) mean += sum / (2 * ranks);  // the hook has what a rank computed before it ran out of inputs
          if (takes && !mode.exact) mean += sum / (mode.initial ? ranks : takes_part);
        }
        if (!local) values[p][i] -= kRate * mean;
      }
    }
  }
  for (std::size_t p = 0; p < kUnevenParameters; ++p) {
    for (std::size_t i = 0; i < kUnevenElements; ++i) {
      // nine steps of float32 with values below 4, a few roundings each
      check(std::abs(static_cast<double>(replica.values[p][i]) - values[p][i]) < 1e-5,
            fmt::format("{}: parameter {} element {} is {}, not {}", mode.name, p, i, replica.values[p][i],
                        values[p][i]));
    }
  }
  check(static_cast<double>(replica.buffer[1]) == buffers[static_cast<std::size_t>(highest)],
        fmt::format("{}: the buffer is {}, not {}", mode.name, replica.buffer[1],
                    buffers[static_cast<std::size_t>(highest)]));
}

void check_early_end(ProcessGroup& group) {
  std::vector<float> value(10, 1.0F);
  std::vector<float> gradient(10, 1.0F);
  Reducer reducer({{.name = "layer", .value = value, .gradient = gradient}}, group, {});
  int steps = 0;
  try {
    Join join({&reducer.joinable()}, {.throw_on_early_termination = true});
    for (int step = 0; has_input(group.rank(), step); ++step, ++steps) {
      reducer.prepare_for_backward();
      reducer.mark_ready(0);
      reducer.finalize();
    }
    join.finish();
    check(group.size() == 1, "ranks that run out early were not noticed");
  } catch (const Error& error) {
    check(error.code() == ErrorCode::aborted && error.ranks() == std::vector<int>{0} && steps == 3, error.what());
  }
}

/// In the fifth step rank 2 misses a gradient: ranks that have run out learn of it, too, and all continue.
void check_missing_gradient(ProcessGroup& group) {
  if (group.size() < 3) return;
  std::vector<float> value(10, 1.0F);
  std::vector<float> gradient(10, 1.0F);
  Reducer reducer({{.name = "layer", .value = value, .gradient = gradient}}, group, {});
  Join join({&reducer.joinable()});
  int missed = 0;
  const auto note = [&](auto&& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      check(error.code() == ErrorCode::invalid_argument && error.ranks() == std::vector<int>{2}, error.what());
      ++missed;
      return false;
    }
  };
  for (int step = 0; has_input(group.rank(), step); ++step) {
    note([&] {
      reducer.prepare_for_backward();
      if (step != 4 || group.rank() != 2) reducer.mark_ready(0);
      reducer.finalize();
    });
  }
  if (!note([&] { join.finish(); })) join.finish();
  check(missed == 1, "a gradient that is missing was not told to all");
}

/// Rank 0 has no inputs in the first Join: it learns from the others how often a static graph marks each gradient, and
/// the resulting buckets.
void check_rank_without_inputs(ProcessGroup& group) {
  std::array<std::vector<float>, 3> values;
  std::vector<Parameter> list;
  for (auto& value : values) {
    value.assign(10, 1.0F);
    list.push_back({.name = fmt::format("layer{}", list.size()), .value = value, .gradient = value});
  }
  ReducerOptions options;
  options.static_graph = true;
  options.bucket_cap_bytes = 40;
  Reducer reducer(list, group, options);
  for (const int steps : {group.rank() == 0 ? 0 : 2, 2}) {
    Join join({&reducer.joinable()});
    for (int step = 0; step < steps; ++step) {
      reducer.prepare_for_backward();
      for (const std::size_t index : {2, 1, 0, 2}) reducer.mark_ready(index);
      reducer.finalize();
    }
    join.finish();
  }
  const std::vector<std::size_t> order{2, 1, 0};
  check(group.size() == 1 || reducer.ready_order() == order, "a rank without inputs has decided the order of buckets");
}

/// Options or steps that differ end a Join on all ranks, before any waits in vain.
void check_mismatch(ProcessGroup& group) {
  if (group.size() < 2) return;
  const int last = group.size() - 1;
  std::vector<int> all(static_cast<std::size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  for (const int other_step : {-1, 1, 2}) {    // -1: options differ; 1: others rebuild their buckets
    ProcessGroup own = *group.new_group(all);  // keeps buckets that never end
    std::vector<float> value(10, 1.0F);
    std::vector<float> gradient(10, 1.0F);
    Reducer reducer({{.name = "layer", .value = value, .gradient = gradient}}, own, {});
    const bool odd = group.rank() == last;
    try {
      Join join({&reducer.joinable()}, {.throw_on_early_termination = other_step < 0 && odd});
      for (int step = 0; step < 5; ++step) {
        std::optional<Reducer::NoSync> alone;
        if (odd && step == other_step) alone.emplace(reducer.no_sync());
        reducer.prepare_for_backward();
        reducer.mark_ready(0);
        reducer.finalize();
      }
      check(false, "ranks that do different things were not noticed");
    } catch (const Error& error) {
      check(error.code() == ErrorCode::mismatch && error.ranks() == std::vector<int>{last}, error.what());
    }
    group.barrier().wait();
  }
}

}  // namespace

void train_on_uneven_inputs(World& world) {
  ProcessGroup group = make_process_group(world);
  for (const UnevenMode& mode :
       {UnevenMode{.name = "plain"}, UnevenMode{.name = "active", .initial = false},
        UnevenMode{.name = "view", .initial = false, .view = true}, UnevenMode{.name = "unused", .find_unused = true},
        UnevenMode{.name = "static", .static_graph = true}, UnevenMode{.name = "hook", .hook = true},
        UnevenMode{.name = "accumulating", .initial = false, .accumulate = true},
        UnevenMode{.name = "exact", .accumulate = true, .exact = true}}) {
    check_against_one_process(train_unevenly(group, mode), group.size(), mode);
  }
  check_early_end(group);
  check_missing_gradient(group);
  check_rank_without_inputs(group);
  check_mismatch(group);
}

}  // namespace ddp::test
