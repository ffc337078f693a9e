// Proves that a Reducer's modes do not change what is learned: after every step, gradients averaged over ranks equal
// those of one process with the whole batch. The model has what makes modes differ: a shared parameter, branches that
// only some ranks take, an unused parameter, and two element types.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "rank_program/scenario.hpp"

namespace ddp::test {
namespace {

constexpr std::size_t kWidth = 16;
constexpr int kBatch = 12;  // samples per step, dealt to the ranks in turn
constexpr int kSteps = 20;
constexpr std::size_t kNames = 8;  // weight, factor, three branches, shared (two names), bias; idle follows

/// out = factor . (weight x) + branch[sample % 3] . x + shared . x + shared . x^2 + bias, loss = (out - target)^2 / 2.
class BranchedModel {
 public:
  BranchedModel() {
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = 0.3F * std::sin(static_cast<float>(i));
  }
  std::vector<float>& gradients() { return gradients_; }
  double& bias_gradient() { return bias_gradient_; }

  /// @param own whether the model owns the gradients' memory.
  std::vector<Parameter> parameters(bool own) {
    std::vector<Parameter> list;
    for (std::size_t i = 0; i <= kNames; ++i) {
      const auto [name, first, count] = part(i);
      if (i == kNames - 1) {
        list.push_back({.name = name,
                        .value = {&bias_, DType::float64, {1}},
                        .gradient = own ? TensorView{&bias_gradient_, DType::float64, {1}} : TensorView{}});
        continue;
      }
      const auto size = static_cast<std::int64_t>(count);
      list.push_back({.name = name,
                      .value = {memory_.data() + first, DType::float32, {size}},
                      .gradient = own ? TensorView{gradients_.data() + first, DType::float32, {size}} : TensorView{}});
    }
    return list;
  }
  struct Part {
    const char* name;
    std::size_t first;
    std::size_t count;
  };
  static Part part(std::size_t index) {
    constexpr std::size_t kSquare = kWidth * kWidth;
    const std::array<Part, kNames + 1> parts{{{"weight", 0, kSquare},
                                              {"factor", kSquare, kWidth},
                                              {"branch0", kSquare + kWidth, kWidth},
                                              {"branch1", kSquare + 2 * kWidth, kWidth},
                                              {"branch2", kSquare + 3 * kWidth, kWidth},
                                              {"shared", kSquare + 4 * kWidth, kWidth},
                                              {"shared again", kSquare + 4 * kWidth, kWidth},
                                              {"bias", 0, 1},
                                              {"idle", kSquare + 5 * kWidth, 3}}};
    return parts[index];
  }

  /// Adds a sample's gradient, times @p scale, to what is at @p gradients (by parameter) and @p bias.
  void backward(int step, int sample, float scale, const std::array<float*, kNames>& gradients, double& bias) const {
    std::array<float, kWidth> x{};
    for (std::size_t i = 0; i < kWidth; ++i)
      x[i] = std::cos(static_cast<float>(step * 31 + sample * 7) + 0.5F * static_cast<float>(i));
    const auto value = [&](std::size_t index) { return memory_.data() + part(index).first; };
    const std::size_t branch = 2 + static_cast<std::size_t>(sample) % 3;
    std::array<float, kWidth> hidden{};
    float out = static_cast<float>(bias_);
    for (std::size_t i = 0; i < kWidth; ++i) {
      for (std::size_t j = 0; j < kWidth; ++j) hidden[i] += value(0)[i * kWidth + j] * x[j];
      out += value(1)[i] * hidden[i] + value(branch)[i] * x[i] + value(5)[i] * (x[i] + x[i] * x[i]);
    }
    const float error = (out - x[0] * x[1]) * scale;
    for (std::size_t i = 0; i < kWidth; ++i) {
      for (std::size_t j = 0; j < kWidth; ++j) gradients[0][i * kWidth + j] += error * value(1)[i] * x[j];
      gradients[1][i] += error * hidden[i];
      gradients[branch][i] += error * x[i];
      gradients[5][i] += error * (x[i] + x[i] * x[i]);
    }
    bias += static_cast<double>(error);
  }
  /// Plain descent with the given gradients.
  void descend(const std::array<float*, kNames>& gradients, double bias) {
    for (std::size_t index = 0; index < 6; ++index) {
      for (std::size_t i = 0; i < part(index).count; ++i) {
        memory_[part(index).first + i] -= 0.02F * gradients[index][i];
      }
    }
    bias_ -= 0.02 * bias;
  }
  const std::vector<float>& memory() const { return memory_; }
  double bias() const { return bias_; }

 private:
  std::vector<float> memory_ = std::vector<float>(kWidth * kWidth + 5 * kWidth + 3);
  std::vector<float> gradients_ = std::vector<float>(kWidth * kWidth + 5 * kWidth + 3);
  double bias_ = 0.1;
  double bias_gradient_ = 0;
};

enum class Graph { plain, find_unused, static_graph };

struct Mode {
  bool view;
  Graph graph;
  bool accumulate;  ///< half of each batch in no_sync
  const char* hook;
};

std::string name_of_mode(const Mode& mode) {
  const std::array names{"plain", "find_unused", "static"};
  return fmt::format("{}{}{} {}", mode.view ? "view " : "", names[static_cast<std::size_t>(mode.graph)],
                     mode.accumulate ? " accumulate" : "", mode.hook);
}

ReducerOptions options_of(const Mode& mode, std::optional<RecordedOrder> recorded) {
  ReducerOptions options;
  options.recorded_order = std::move(recorded);
  options.bucket_cap_bytes = 100;
  options.gradient_as_bucket_view = mode.view;
  options.find_unused_parameters = mode.graph == Graph::find_unused;
  options.static_graph = mode.graph == Graph::static_graph;
  const std::string hook = mode.hook;
  if (hook == "exact") options.comm_hook = exact_average_hook();
  if (hook == "all_reduce") options.comm_hook = all_reduce_hook();
  if (hook == "float16") options.comm_hook = compress_hook(DType::float16);
  if (hook == "bfloat16 wrapper") options.comm_hook = compress_wrapper(DType::bfloat16, all_reduce_hook());
  return options;
}

/// A rank's replica under a Reducer, and the same model trained on whole batches next to it.
class Training {
 public:
  Training(World& world, ProcessGroup& group, const Mode& mode, std::optional<RecordedOrder> recorded = {})
      : rank_(world.rank()),
        ranks_(world.world_size()),
        mode_(mode),
        reducer_(replica_.parameters(!mode.view), group, options_of(mode, std::move(recorded))) {}

  void step(int number) {
    clear();
    if (mode_.accumulate) {
      const auto local = reducer_.no_sync();
      pass(number, 0, kBatch / 2);
    }
    pass(number, mode_.accumulate ? kBatch / 2 : 0, kBatch);
    check_step(number);
  }

  /// Each sample is a leaf: its own step, whichever rank has it.
  void step_by_leaves(int number) {
    clear();
    for (int sample = rank_; sample < kBatch; sample += ranks_) {
      std::optional<Reducer::NoSync> local;
      if (sample + ranks_ < kBatch) local.emplace(reducer_.no_sync());
      reducer_.prepare_for_backward();
      look();
      replica_.backward(number, sample, 1, gradients_, *bias_);
      for (std::size_t index = 0; index <= kNames; ++index) reducer_.mark_ready(index);
      reducer_.finalize();
    }
    replica_.descend(gradients_, *bias_);
  }
  /// FNV-1a of the replica's bits.
  std::uint64_t hash() const {
    std::uint64_t hash = 0xcbf29ce484222325;
    const auto add = [&](auto value) {
      for (const std::byte byte : std::bit_cast<std::array<std::byte, sizeof value>>(value)) {
        hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
      }
    };
    for (const float value : replica_.memory()) add(value);
    add(replica_.bias());
    return hash;
  }

  RecordedOrder recorded_order() const { return reducer_.recorded_order(); }
  bool rebuilt() const { return !reducer_.ready_order().empty(); }

 private:
  /// The places of the gradients, which may have moved.
  void look() {
    for (std::size_t i = 0; i < kNames; ++i) {
      gradients_[i] = mode_.view ? static_cast<float*>(reducer_.bucket_view(i).data())
                                 : replica_.gradients().data() + BranchedModel::part(i).first;
    }
    bias_ = mode_.view ? static_cast<double*>(reducer_.bucket_view(kNames - 1).data()) : &replica_.bias_gradient();
  }
  void clear() {
    look();
    for (std::size_t i = 0; i < kNames - 1; ++i) std::fill_n(gradients_[i], BranchedModel::part(i).count, 0.0F);
    *bias_ = 0;
    if (!mode_.view) std::fill_n(replica_.gradients().end() - 3, 3, mode_.graph == Graph::plain ? 0.0F : 7.0F);
  }

  void pass(int number, int first, int past) {
    std::vector<std::size_t> unused;
    std::array<bool, 3> taken{};
    for (int sample = first; sample < past; ++sample) {
      if (sample % ranks_ == rank_) taken[static_cast<std::size_t>(sample) % 3] = true;
    }
    // some unused ones are reported beforehand, the others are just never marked
    if (mode_.graph == Graph::find_unused && !taken[1]) unused.push_back(3);
    if (mode_.graph == Graph::find_unused && number % 2 == 0) unused.push_back(kNames);
    reducer_.prepare_for_backward(unused);
    look();
    const float scale = static_cast<float>(ranks_) / kBatch;
    for (int sample = first; sample < past; ++sample) {
      if (sample % ranks_ == rank_) replica_.backward(number, sample, scale, gradients_, *bias_);
    }
    // a different order on every rank, from two threads
    const auto mark = [&](std::size_t parity) {
      for (std::size_t i = 0; i <= kNames; ++i) {
        const std::size_t index = (i + static_cast<std::size_t>(rank_)) % (kNames + 1);
        if (index % 2 != parity) continue;
        const bool idle = index == kNames || (index >= 2 && index <= 4 && !taken[index - 2]);
        if (idle && mode_.graph != Graph::plain) continue;
        reducer_.mark_ready(index);
      }
    };
    std::thread other(mark, 1);
    mark(0);
    other.join();
    reducer_.finalize();
  }

  void check_step(int number) {
    BranchedModel& whole = reference_;
    std::vector<float> memory(whole.memory().size());
    std::array<float*, kNames> expected{};
    for (std::size_t i = 0; i < kNames; ++i) expected[i] = memory.data() + BranchedModel::part(i).first;
    double bias = 0;
    for (int sample = 0; sample < kBatch; ++sample) {
      whole.backward(number, sample, 1.0F / kBatch, expected, bias);
    }
    // Sums of 12 float32 terms in another order, and differences of earlier steps: about 1e-6. The hooks round to 11
    // and 8 bits in each step.
    const std::string hook = mode_.hook;
    const double tolerance = hook == "float16" ? 5e-3 : hook == "bfloat16 wrapper" ? 5e-2 : 2e-5;
    const auto compare = [&](const char* name, double mine, double wanted) {
      if (std::abs(mine - wanted) <= tolerance * std::max(1.0, std::abs(wanted))) return;
      check(false, fmt::format("{}: step {}: {} is {}, not {}", name_of_mode(mode_), number, name, mine, wanted));
    };
    for (std::size_t index = 0; index < kNames - 1; ++index) {
      const auto [name, first, count] = BranchedModel::part(index);
      for (std::size_t i = 0; i < count; ++i) {
        compare(name, gradients_[index][i], expected[index][i]);
        compare(name, replica_.memory()[first + i], whole.memory()[first + i]);
      }
    }
    compare("bias", *bias_, bias);
    const float idle = mode_.graph == Graph::plain ? 0.0F : 7.0F;
    for (std::size_t i = 0; i < 3 && !mode_.view; ++i) {
      check(*(replica_.gradients().end() - 3 + static_cast<std::ptrdiff_t>(i)) == idle,
            name_of_mode(mode_) + ": the gradient of a parameter that nobody uses was changed");
    }
    check(reducer_.used(kNames) == (mode_.graph == Graph::plain), name_of_mode(mode_) + ": who uses 'idle' is wrong");
    check(reducer_.used(2) && reducer_.used(3) && reducer_.used(4),
          name_of_mode(mode_) + ": a branch counts as unused");
    replica_.descend(gradients_, *bias_);
    whole.descend(expected, bias);
  }

  int rank_;
  int ranks_;
  Mode mode_;
  BranchedModel replica_;
  BranchedModel reference_;
  Reducer reducer_;
  std::array<float*, kNames> gradients_{};
  double* bias_ = nullptr;
};

/// The hash of a replica after 20 steps.
std::uint64_t trained_exactly(World& world, ProcessGroup& group, bool view) {
  Training training(world, group, {.view = view, .graph = Graph::plain, .accumulate = false, .hook = "exact"});
  for (int step = 1; step <= kSteps; ++step) training.step_by_leaves(step);
  return training.hash();
}

}  // namespace

void train_in_all_modes(World& world) {
  ProcessGroup group = make_process_group(world);
  const auto train = [&](const Mode& mode) {
    Training training(world, group, mode);
    for (int step = 1; step <= kSteps; ++step) training.step(step);
    check(training.rebuilt() == (mode.graph != Graph::find_unused), name_of_mode(mode) + ": wrong about rebuilding");
    if (mode.graph != Graph::static_graph || mode.hook != std::string("none")) return;
    // Each rank has its own counts: ranks mark different branches.
    Training next(world, group, mode, training.recorded_order());
    for (int step = 1; step <= kSteps; ++step) next.step(step);
  };
  for (const Graph graph : {Graph::plain, Graph::find_unused, Graph::static_graph}) {
    for (const bool view : {false, true}) {
      for (const bool accumulate : {false, true}) {
        if (graph == Graph::static_graph && accumulate) continue;  // its two passes are two graphs
        train({.view = view, .graph = graph, .accumulate = accumulate, .hook = "none"});
      }
      for (const char* hook : {"exact", "all_reduce", "float16", "bfloat16 wrapper"}) {
        train({.view = view, .graph = graph, .accumulate = false, .hook = hook});
      }
    }
  }
}

void train_exactly(World& world) {
  ProcessGroup group = make_process_group(world);
  const std::uint64_t hash = trained_exactly(world, group, false);
  check(trained_exactly(world, group, true) == hash, "exact averages in views have other bits");
  fmt::print("EXACT {:016x}\n", hash);
}

// Checkpoint saves that are interrupted: by a signal, or by a full disk.

namespace {

/// Its values show which step and rank it comes from.
struct SavedModel {
  std::vector<float> weight = std::vector<float>(60'000);
  std::vector<std::int64_t> step = {0};

  void set(std::int64_t to, int rank) {
    step[0] = to;
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>((to * 8 + rank) % 4096) + i % 3;
  }
  std::vector<NamedTensor> tensors() {
    return {{.name = "weight", .tensor = weight}, {.name = "step", .tensor = step}};
  }
};

/// The step to continue from, whose values are checked; 0 without a checkpoint.
std::int64_t resume(Checkpoints& kept, SavedModel& model, int rank) {
  const auto restored = kept.restore(model.tensors());
  if (!restored) return 0;
  SavedModel wanted;
  wanted.set(restored->step, rank);
  check(model.weight == wanted.weight && model.step == wanted.step, "the checkpoint is not that of its step and rank");
  check(restored->extra == fmt::format("step {}", restored->step), "the extra bytes are others");
  return restored->step;
}

}  // namespace

void save_checkpoints(World& world, Arguments arguments) {
  ProcessGroup group = make_process_group(world);
  Checkpoints kept(group, arguments[0], {.keep = 2});
  SavedModel model;
  const std::int64_t first = resume(kept, model, group.rank());
  fmt::print("RESTORED {}\n", first);
  for (std::int64_t step = first + 1; step <= first + std::stoll(arguments[1]); ++step) {
    model.set(step, group.rank());
    kept.save_sharded(step, model.tensors(), fmt::format("step {}", step));
    if (step == first + 1) fmt::print("SAVED\n");
    std::fflush(stdout);
  }
  if (arguments.size() < 3) return;
  // The victim cannot read its second tensor: it dies after writing the first.
  auto tensors = model.tensors();
  if (std::stoi(arguments[2]) == group.rank()) {
    constexpr std::size_t kBytes = 1 << 16;
    void* const memory = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "no memory");
    ::signal(SIGSEGV, [](int) { ::raise(SIGKILL); });
    tensors.push_back({.name = "unreadable", .tensor = {memory, DType::uint8, {kBytes}}});
  }
  kept.save_sharded(first + 1'000'000, tensors);
}

void keep_in_memory(World& world, Arguments arguments) {
  ProcessGroup group = make_process_group(world);
  const bool shards = arguments[1] == "shards";
  const int own = shards ? group.rank() : 0;
  Checkpoints kept(group, arguments[0], {.memory = true});
  SavedModel model;
  const std::int64_t restored = resume(kept, model, own);
  fmt::print("RESTORED {}\n", restored);
  std::fflush(stdout);
  if (restored > 0) return;
  for (const std::int64_t step : {1, 2}) {
    model.set(step, own);
    const std::string extra = fmt::format("step {}", step);
    shards ? kept.save_sharded(step, model.tensors(), extra) : kept.save(step, model.tensors(), extra);
  }
  const char* const place = std::getenv("DDP_NODE_CACHE");
  fmt::print("SAVED {} {} {}\n", world.rank(), ::getpid(), place != nullptr ? place : "nowhere");
  std::fflush(stdout);
  for (;;) ::pause();
}

void fill_the_disk(World& world, Arguments arguments) {
  ProcessGroup group = make_process_group(world);
  Checkpoints kept(group, arguments[0]);
  SavedModel model;
  const auto save = [&](std::int64_t step) {
    model.set(step, group.rank());
    kept.save_sharded(step, model.tensors(), fmt::format("step {}", step));
  };
  save(1);
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  check(::getrlimit(RLIMIT_FSIZE, &limit) == 0, "no limit");
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = 100'000;
  if (group.rank() == 1) check(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "the limit cannot be set");
  std::optional<Error> error;
  for (const std::int64_t step : {1, 2}) {
    error.reset();
    try {
      save(step);
    } catch (const Error& caught) {
      error = caught;
    }
  }
  limit.rlim_cur = before;
  check(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "the limit cannot be lifted");
  check(error && error->code() == ErrorCode::system && error->ranks() == std::vector{1}, "the save did not fail");
  const bool is_known = error->native() == "EFBIG (27)" && error->hint().find("ulimit -f") != std::string::npos;
  check(is_known, fmt::format("another reason: {}", error->what()));
  check(resume(kept, model, group.rank()) == 1, "the former checkpoint is not the newest");
  save(2);
  check(resume(kept, model, group.rank()) == 2, "the next save does not count");
  const std::filesystem::directory_iterator left(fmt::format("{}/step-1", arguments[0]));
  check(std::distance(left, {}) == 3, "files of the save that failed stay");
}

}  // namespace ddp::test
