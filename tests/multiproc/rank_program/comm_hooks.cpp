// Communication hooks against references in double precision, on buckets that are rebuilt after the first step.
#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <map>
#include <numbers>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "rank_program/hook_run.hpp"

namespace ddp::test {
namespace {

double mean_of(const Gradient& gradient, int ranks, int step, std::size_t parameter, std::size_t element) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += static_cast<double>(gradient(rank, step, parameter, element));
  return sum / ranks;
}

/// Calls @p limit(step, parameter, element, mean) for the allowed difference between each output and the mean of all
/// ranks.
template <class Limit>
void check_means(const char* what, const Outputs& outputs, const Gradient& gradient, int ranks, Limit&& limit) {
  for (std::size_t step = 0; step < outputs.size(); ++step) {
    for (std::size_t parameter = 0; parameter < outputs[step].size(); ++parameter) {
      for (std::size_t i = 0; i < outputs[step][parameter].size(); ++i) {
        const auto got = static_cast<double>(outputs[step][parameter][i]);
        const double wanted = mean_of(gradient, ranks, static_cast<int>(step), parameter, i);
        check(
            std::abs(got - wanted) <= limit(step, parameter, i, wanted),
            fmt::format("{}: step {}, parameter {}, element {} is {}, not {}", what, step, parameter, i, got, wanted));
      }
    }
  }
}

/// A hook that a program could write.
class OwnAverage final : public CommHook {
 public:
  std::string name() const override { return "own"; }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    for (std::size_t i = 0; i < bucket.buffer.numel(); ++i) {
      static_cast<float*>(bucket.buffer.data())[i] /= static_cast<float>(group.size());
    }
    return [work = group.all_reduce(bucket.buffer, ReduceOp::sum, {{}, bucket.memory})] { work.wait(); };
  }
};

void check_own_hook(ProcessGroup& group) {
  check(run(group, std::make_shared<OwnAverage>(), rough) == run(group, all_reduce_hook(), rough),
        "a program's own average has other bits");
}

/// A hook sees the same buckets wherever gradients live, and whatever is known about the graph.
void check_modes(ProcessGroup& group) {
  const std::map<std::string, std::function<std::shared_ptr<CommHook>()>> hooks{
      {"PowerSGD", [] { return power_sgd_hook({.rank = 2, .start_iteration = 2, .min_compression_rate = 1}); }},
      {"batched PowerSGD", [] { return batched_power_sgd_hook({.rank = 2, .start_iteration = 2}); }},
      {"8 bits a tensor", [] { return quantize_per_tensor_hook(); }},
      {"8 bits a channel", [] { return quantize_per_channel_hook(); }},
      {"top-k", [] { return top_k_hook(0.1); }},
      {"local", [] { return post_local_sgd_hook(3); }},
      {"nothing", [] { return noop_hook(); }},
      {"optimizer", [] { return optimizer_hook([](std::size_t, const TensorView&) {}, top_k_hook(0.1)); }}};
  for (const auto& [name, make] : hooks) {
    const Outputs plain = run(group, make(), rough);
    for (const auto& [view, static_graph] : {std::pair{true, false}, {false, true}, {true, true}}) {
      check(run(group, make(), rough, {.view = view, .static_graph = static_graph}) == plain,
            fmt::format("{}: other bits with view {}, static graph {}", name, view, static_graph));
    }
  }
  const Outputs own = run(group, noop_hook(), rough);
  for (std::size_t i = 0; i < own[1][0].size(); ++i) {
    check(own[1][0][i] == rough(group.rank(), 1, 0, i), "a gradient that nobody averages has changed");
  }
}

// PowerSGD

/// The k-th orthonormal vector of the cosine transform.
double wave(std::size_t k, std::size_t i, std::size_t count) {
  const auto n = static_cast<double>(count);
  const double scale = std::sqrt((k == 0 ? 1.0 : 2.0) / n);
  return scale * std::cos(std::numbers::pi / n * (static_cast<double>(i) + 0.5) * static_cast<double>(k));
}

/// Element of a matrix with singular values @p strengths.
double element_of(std::size_t rows, std::size_t columns, std::size_t element, std::initializer_list<double> strengths) {
  double value = 0;
  std::size_t k = 1;
  for (const double strength : strengths) {
    value += strength * wave(k, element / columns, rows) * wave(k + 1, element % columns, columns);
    ++k;
  }
  return value;
}

void check_low_rank_is_exact(ProcessGroup& group) {
  // all ranks' gradients, and so their errors, are in one space of rank 2: then the mean is found exactly
  const Gradient two = [](int rank, int step, std::size_t parameter, std::size_t i) {
    if (parameter == 1 || parameter > 2) return rough(rank, step, parameter, i);  // not compressed
    const std::size_t columns = 20;
    const std::size_t rows = parameter == 0 ? 24 : 30;
    return static_cast<float>(element_of(rows, columns, i, {9.0 + rank, 4.0 - rank + 0.5 * step}));
  };
  // float32 rounding in sums of 30 terms, and of errors that grow with the steps: about 1e-5 of the largest value, 2.2
  const auto limit = [](std::size_t, std::size_t, std::size_t, double) { return 1e-4; };
  for (const bool feedback : {true, false}) {
    for (const bool warm : {true, false}) {
      const auto hook = power_sgd_hook({.rank = 2,
                                        .start_iteration = 2,
                                        .min_compression_rate = 1.5,
                                        .error_feedback = feedback,
                                        .warm_start = warm});
      check_means("PowerSGD", run(group, hook, two), two, group.size(), limit);
    }
  }
  const Gradient square = [](int rank, int step, std::size_t, std::size_t i) {
    return static_cast<float>(element_of(24, 24, i, {9.0 + rank, 4.0 - rank + 0.5 * step}));
  };
  check_means("batched PowerSGD",
              run(group, batched_power_sgd_hook({.rank = 2, .start_iteration = 0}), square, {.shapes = {{24 * 24}}}),
              square, group.size(), limit);
}

void check_best_approximation(ProcessGroup& group) {
  const int ranks = group.size();
  const Gradient full = [ranks](int rank, int, std::size_t, std::size_t i) {
    const double own = rank - (ranks - 1) / 2.0;  // cancels in the mean
    return static_cast<float>(element_of(24, 20, i, {8, 4, 1, 0.5, 0.25}) + own * element_of(24, 20, i, {0, 0.5, 3}));
  };
  const Run how{.shapes = {{24, 20}}, .steps = 14};
  const Outputs outputs =
      run(group, power_sgd_hook({.rank = 2, .start_iteration = 0, .error_feedback = false}), full, how);
  for (std::size_t i = 0; i < 480; ++i) {
    // the closest matrix of rank 2 is the part of the two largest singular values (Eckart and Young); what is left of
    // the others shrinks by (1/4)^2 in each step
    const double wanted = element_of(24, 20, i, {8, 4});
    check(std::abs(static_cast<double>(outputs.back()[0][i]) - wanted) < 1e-5, "PowerSGD does not converge");
  }
}

void check_error_feedback(ProcessGroup& group) {
  const Run how{.steps = 200};
  const Gradient constant = [](int rank, int, std::size_t parameter, std::size_t i) {
    return rough(rank, 0, parameter, i);
  };
  struct Case {
    const char* name;
    std::shared_ptr<CommHook> hook;
  };
  const std::array cases{
      Case{"PowerSGD", power_sgd_hook({.rank = 1, .start_iteration = 0, .min_compression_rate = 1})},
      Case{"cold PowerSGD",
           power_sgd_hook({.rank = 1, .start_iteration = 0, .min_compression_rate = 1, .warm_start = false})},
      Case{"batched PowerSGD", batched_power_sgd_hook({.rank = 2, .start_iteration = 0})},
      Case{"top-k", top_k_hook(0.1)}};
  for (const Case& each : cases) {
    // What is left out comes later: the sum of all outputs differs from that of the gradients by the remaining errors,
    // which are bounded; without feedback, or with lost errors, by as much again in every step.
    const Outputs outputs = run(group, each.hook, constant, how);
    double worst = 0;
    for (std::size_t parameter = 0; parameter < kShapes.size(); ++parameter) {
      for (std::size_t i = 0; i < size_of_shape(kShapes[parameter]); ++i) {
        double sum = 0;
        for (const auto& step : outputs) sum += static_cast<double>(step[parameter][i]);
        if (!std::isfinite(sum))
          check(false, fmt::format("{}: element {} of parameter {} is {}", each.name, i, parameter, sum));
        worst = std::max(worst, std::abs(sum / how.steps - mean_of(constant, group.size(), 0, parameter, i)));
      }
    }
    check(worst < 0.15, fmt::format("{}: the mean over {} steps is off by {}", each.name, how.steps, worst));
  }
}

// 8 bits and top-k

void check_quantization(ProcessGroup& group) {
  const int ranks = group.size();
  // one parameter per bucket; row sizes differ widely, so that one scale for all would be too coarse
  const Run how{.shapes = {{1300}, {512}}, .steps = 3, .cap_bytes = 1};
  const Gradient rows = [](int rank, int step, std::size_t parameter, std::size_t i) {
    return rough(rank, step, parameter, i) * std::pow(100.0F, static_cast<float>(i / 512));
  };
  const auto half_step = [&](std::size_t step, std::size_t parameter, std::size_t first, std::size_t past) {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      double low = 0;
      double high = 0;
      for (std::size_t i = first; i < past; ++i) {
        const auto value = static_cast<double>(rows(rank, static_cast<int>(step), parameter, i));
        low = std::min(low, value);
        high = std::max(high, value);
      }
      sum += (high - low) / 255 / 2;
    }
    return sum / ranks * 1.001;  // plus float32 rounding
  };
  for (const bool by_channel : {false, true}) {
    const auto hook = by_channel ? quantize_per_channel_hook() : quantize_per_tensor_hook();
    std::map<std::tuple<std::size_t, std::size_t, std::size_t>, double> memo;
    const auto limit = [&](std::size_t step, std::size_t parameter, std::size_t i, double) {
      const std::size_t count = size_of_shape(how.shapes[parameter]);
      const std::size_t first = by_channel ? i / 512 * 512 : 0;
      const auto [entry, is_new] = memo.try_emplace({step, parameter, first}, 0.0);
      if (is_new) entry->second = half_step(step, parameter, first, by_channel ? std::min(first + 512, count) : count);
      return entry->second;
    };
    check_means(by_channel ? "8 bits per channel" : "8 bits per tensor", run(group, hook, rows, how), rows, ranks,
                limit);
  }
}

void check_top_k(ProcessGroup& group) {
  const int ranks = group.size();
  const Run how{.shapes = {{1300}, {70}}, .steps = 5, .cap_bytes = 1};
  const Outputs outputs = run(group, top_k_hook(0.03), rough, how);
  for (std::size_t parameter = 0; parameter < how.shapes.size(); ++parameter) {
    const std::size_t count = size_of_shape(how.shapes[parameter]);
    const auto wanted = static_cast<std::size_t>(std::ceil(0.03 * static_cast<double>(count)));
    std::vector<std::vector<double>> left(static_cast<std::size_t>(ranks), std::vector<double>(count));
    for (int step = 0; step < how.steps; ++step) {
      std::vector<double> mean(count);
      for (int rank = 0; rank < ranks; ++rank) {
        auto& own = left[static_cast<std::size_t>(rank)];
        std::vector<std::size_t> order(count);
        std::iota(order.begin(), order.end(), std::size_t{0});
        for (std::size_t i = 0; i < count; ++i) own[i] += static_cast<double>(rough(rank, step, parameter, i));
        std::ranges::stable_sort(order,
                                 [&](std::size_t a, std::size_t b) { return std::abs(own[a]) > std::abs(own[b]); });
        for (std::size_t i = 0; i < wanted; ++i) mean[order[i]] += std::exchange(own[order[i]], 0.0) / ranks;
      }
      for (std::size_t i = 0; i < count; ++i) {
        // the same elements, with float32 rounding in up to nine sums
        check(std::abs(static_cast<double>(outputs[static_cast<std::size_t>(step)][parameter][i]) - mean[i]) < 1e-5,
              fmt::format("top-k: step {}, element {}", step, i));
      }
    }
  }
}

// fewer averages

void check_local_sgd(ProcessGroup& group) {
  const int ranks = group.size();
  const int pairs = group.rank() / 2;
  ProcessGroup pair = split_group(group, pairs);
  const Outputs outputs = run(group, post_local_sgd_hook(2, pair), rough, {.steps = 4});
  const Outputs alone = run(group, post_local_sgd_hook(2), rough, {.steps = 3});
  const auto expect = [&](float got, int first, int past, int step, std::size_t i) {
    double sum = 0;
    for (int rank = first; rank < past; ++rank) sum += static_cast<double>(rough(rank, step, 0, i));
    // some float32 roundings of values below 3
    check(std::abs(static_cast<double>(got) - sum / (past - first)) < 2e-6,
          fmt::format("post-local SGD: step {}", step));
  };
  for (std::size_t i = 0; i < size_of_shape(kShapes[0]); ++i) {
    for (int step = 0; step < 4; ++step) {
      const bool local = step >= 2;
      expect(outputs[static_cast<std::size_t>(step)][0][i], local ? 2 * pairs : 0,
             local ? std::min(2 * pairs + 2, ranks) : ranks, step, i);
    }
    expect(alone[2][0][i], group.rank(), group.rank() + 1, 2, i);
  }

  std::vector<float> value{0, 0};
  const std::array tensors{TensorView{value}};
  PeriodicModelAverager periodic(group, 3, 2);
  const double mean = (ranks - 1) / 2.0;
  for (int step = 0; step < 7; ++step) {
    value.assign(2, static_cast<float>(group.rank()));
    periodic.average_parameters(tensors);
    const bool averages = step == 2 || step == 5;
    check(static_cast<double>(value[1]) == (averages ? mean : group.rank()),
          fmt::format("periodic averages: {}", step));
  }
  if (ranks % 2 != 0 || ranks == 2) return;
  const std::array<HierarchicalModelAverager::Level, 2> levels{{{2, 2}, {4, ranks}}};
  HierarchicalModelAverager hierarchy(group, levels, 1);
  for (int step = 0; step < 9; ++step) {
    value.assign(2, static_cast<float>(group.rank()));
    hierarchy.average_parameters(tensors);
    const bool all = step > 0 && step % 4 == 0;
    const bool some = step > 0 && step % 2 == 0;
    const double wanted = all ? mean : some ? 2 * pairs + 0.5 : group.rank();
    check(static_cast<double>(value[0]) == wanted, fmt::format("hierarchical averages: {}", step));
  }
  const std::array<HierarchicalModelAverager::Level, 2> wrong{{{4, 2}, {2, ranks}}};
  try {
    HierarchicalModelAverager refused(group, wrong);
    check(false, "descending periods were accepted");
  } catch (const Error& error) {
    check(error.code() == ErrorCode::invalid_argument, error.what());
  }
}

void check_optimizer(ProcessGroup& group) {
  std::vector<std::vector<float>> stepped(kShapes.size());
  std::vector<std::size_t> order;
  const auto step = [&](std::size_t parameter, const TensorView& gradient) {
    const auto* const values = static_cast<const float*>(gradient.data());
    stepped[parameter].assign(values, values + gradient.numel());
    order.push_back(parameter);
  };
  const Outputs outputs = run(group, optimizer_hook(step, compress_hook(DType::float16)), rough);
  check(stepped == outputs.back(), "the optimizer saw other gradients than the program");
  check(order.size() == 6 * kShapes.size(), "the optimizer steps each parameter once in a step");
}

}  // namespace

void run_comm_hooks(World& world) {
  ProcessGroup group = make_process_group(world);
  check_own_hook(group);
  check_modes(group);
  check_low_rank_is_exact(group);
  check_best_approximation(group);
  check_error_feedback(group);
  check_quantization(group);
  check_top_k(group);
  check_local_sgd(group);
  check_optimizer(group);
}

void lose_a_rank_in_a_hook(World& world, Arguments arguments) {
  const std::array<std::function<std::shared_ptr<CommHook>()>, 3> makers{
      [] { return power_sgd_hook({.rank = 1, .start_iteration = 0, .min_compression_rate = 1}); },
      [] { return batched_power_sgd_hook({.rank = 1, .start_iteration = 0}); }, [] { return top_k_hook(0.1); }};
  const auto& make = makers.at(static_cast<std::size_t>(std::stoi(arguments[0])));
  ProcessGroup group = make_process_group(world);
  const std::array<int, 2> left{0, 2};
  auto survivors = group.new_group(left);
  const auto hook = make();
  try {
    run(group, hook, [](int rank, int step, std::size_t parameter, std::size_t element) {
      if (rank == 1 && step == 2 && parameter == 3) raise(SIGKILL);  // some buckets of the third step are in progress
      return rough(rank, step, parameter, element);
    });
    check(false, "nobody was missed");
  } catch (const Error& error) {
    check(error.code() == ErrorCode::peer_lost && error.ranks() == std::vector<int>{1}, error.what());
  }
  check(run(*survivors, hook, rough) == run(*survivors, make(), rough),
        "the hook has kept something of the step that failed");
}

}  // namespace ddp::test
