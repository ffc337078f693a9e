// Scenarios of nccl_rank: a Reducer's gradients on the device have the same bits as on the CPU.
#include <ddp/ddp.hpp>

#include "nccl_rank.hpp"
#include "nccl_rank_case.hpp"
#include "nccl_rank_gradients.hpp"

namespace ddp::test {
namespace {

constexpr PowerSgdOptions kLowRank{.rank = 2, .start_iteration = 0, .min_compression_rate = 1};

/// Runs @p body in both places, which must give the same bits.
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
  // these need all parameters, and have other buckets in the second step, which must have what the first left out
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

/// Gradients of no_sync steps count although nothing marks them afterwards, also in another group's buckets.
void accumulate(Training& training) {
  for (int step = 0; step < 3; ++step) {
    {
      const auto alone = training.reducer().no_sync();
      training.backward(2 * step);
    }
    if (step == 1) {
      // the program's stream is still busy while buckets are made, which takes a while
      for (int late = 0; late < 20; ++late) training.compute(0, late);
      training.reducer().change_group(training.group());
    }
    training.reducer().prepare_for_backward();
    training.reducer().finalize();
    training.fork();  // in this step the other stream computes nothing
    training.read_all();
  }
}

/// Buckets are rebuilt once, when there are gradients of a no_sync step.
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

/// A hook of a program.
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
    // state kept per parameter moves with its buckets
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
  place.finish();  // destroys its parts now
  group.barrier().wait();
}

// Sparse gradients on the device have the same average as on the CPU.

namespace {

struct Table {
  DType dtype;
  std::int64_t rows;
  std::int64_t width;
};
const std::vector<Table> kTables{{DType::float32, 9, 3}, {DType::float64, 5, 2}, {DType::bfloat16, 7, 5}};
constexpr std::size_t kDense = 3;  ///< the parameter after the tables

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span{values});
  return {bytes.begin(), bytes.end()};
}

/// Tables and a dense parameter; the last stream besides the program's computes every other table.
class Embeddings {
 public:
  Embeddings(ProcessGroup& group, GradientPlace& place, bool own_memory, bool find_unused = false)
      : group_(group), place_(place), reducer_(make(own_memory, find_unused)) {}

  Reducer& reducer() { return reducer_; }
  ProcessGroup& group() { return group_; }
  static int producer_of(std::size_t table) { return static_cast<int>(table % 2); }

  /// Some rows, maybe none, some repeated.
  void mark(std::size_t table, int step, std::optional<std::int64_t> stray = {}) {
    const auto [dtype, rows_of_table, width] = kTables[table];
    const int rank = group_.rank();
    std::vector<std::int64_t> rows(static_cast<std::size_t>((3 * step + 2 * rank + static_cast<int>(table)) % 6));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = static_cast<std::int64_t>(i * i + 3 * static_cast<std::size_t>(step + rank)) % rows_of_table;
    }
    if (stray) rows.push_back(*stray);
    std::vector<float> floats(rows.size() * static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < floats.size(); ++i) {
      floats[i] = std::sin(static_cast<float>(i) * 0.7F + static_cast<float>(step + 7 * rank));
    }
    Bytes values = bytes_of(floats);
    if (dtype == DType::float64) values = bytes_of(std::vector<double>(floats.begin(), floats.end()));
    if (dtype == DType::bfloat16) {
      std::vector<BFloat16> halves;
      for (const float each : floats) halves.push_back(to_bfloat16(each));
      values = bytes_of(halves);
    }
    const int producer = producer_of(table);
    const auto count = static_cast<std::int64_t>(rows.size());
    const SparseGradient gradient{.rows = {put(bytes_of(rows), producer), DType::int64, {count}, place_.device()},
                                  .values = {put(values, producer), dtype, {count, width}, place_.device()}};
    const auto stream = place_.stream(producer);
    stream&& producer != 0 ? reducer_.mark_ready(table, gradient, *stream) : reducer_.mark_ready(table, gradient);
  }
  void mark_dense(int step) {
    place_.write(dense_.get(), bytes_of(std::vector<float>(kElements, static_cast<float>(step + group_.rank()))), 0);
    reducer_.mark_ready(kDense);
  }
  void backward(int step) {
    reducer_.prepare_for_backward();
    place_.order(0, 1);
    mark_dense(step);
    for (std::size_t table = 0; table < kTables.size(); ++table) mark(table, step);
    reducer_.finalize();
  }
  void read_all() {
    for (std::size_t table = 0; table < kTables.size(); ++table) {
      const SparseGradient average = reducer_.sparse_average(table);
      for (const TensorView& each : {average.rows, average.values}) {
        place_.read(each.data(), each.size_bytes(), producer_of(table));
      }
    }
    place_.read(dense_.get(), kElements * sizeof(float), 0);
    place_.order(1, 0);
  }

 private:
  static constexpr std::size_t kElements = 20;

  void* put(const Bytes& bytes, int producer) {
    memory_.push_back(place_.allocate(bytes.size()));
    place_.order(0, producer);  // it is zeroed in the program's stream
    place_.write(memory_.back().get(), bytes, producer);
    return memory_.back().get();
  }
  Reducer make(bool own_memory, bool find_unused) {
    std::vector<Parameter> parameters;
    for (const Table& table : kTables) {
      memory_.push_back(place_.allocate(static_cast<std::size_t>(table.rows * table.width) * size_of(table.dtype)));
      parameters.push_back({.name = fmt::format("table{}", parameters.size()),
                            .value = {memory_.back().get(), table.dtype, {table.rows, table.width}, place_.device()},
                            .sparse_gradient = true});
    }
    memory_.push_back(place_.allocate(kElements * sizeof(float)));
    dense_ = place_.allocate(kElements * sizeof(float));
    const auto like = [&](void* data) { return TensorView{data, DType::float32, {kElements}, place_.device()}; };
    parameters.push_back({.name = "dense", .value = like(memory_.back().get()), .gradient = like(dense_.get())});
    ReducerOptions options;
    options.find_unused_parameters = find_unused;
    options.stream = place_.stream(0);
    if (own_memory) options.allocator = [this](std::size_t bytes, Device) { return place_.allocate(bytes); };
    return Reducer(parameters, group_, options);
  }

  ProcessGroup& group_;
  GradientPlace& place_;
  std::vector<std::shared_ptr<void>> memory_;
  std::shared_ptr<void> dense_;
  Reducer reducer_;
};

void take_sparse_steps(Embeddings& training) {
  for (int step = 0; step < 7; ++step) {
    if (step == 4) training.reducer().change_group(training.group());  // what was read last may still be read
    training.backward(step);
    training.read_all();
  }
}

/// Rows of a no_sync step, and tables that some ranks do not use.
void accumulate_rows(Embeddings& training) {
  for (int step = 0; step < 4; ++step) {
    {
      const auto alone = training.reducer().no_sync();
      training.reducer().prepare_for_backward();
      training.mark(1, step);
      training.reducer().finalize();
    }
    training.reducer().prepare_for_backward();
    if (step % 2 == training.group().rank()) training.mark(0, step);
    training.mark_dense(step);
    training.reducer().finalize();
    training.read_all();
  }
  // a rank without rows does not wait for a device that still reads its data of the other group
  const bool has_rows = training.group().rank() == training.group().size() - 1;
  for (int late = 0; late < (has_rows ? 1 : 20); ++late) training.read_all();
  training.reducer().change_group(training.group());
  training.reducer().prepare_for_backward();
  if (has_rows) training.mark(0, 5);
  training.mark_dense(5);
  training.reducer().finalize();
  training.read_all();
}

void run_out_of_rows(Embeddings& training) {
  Join join({&training.reducer().joinable()});
  for (int step = 0; step < 2 + 2 * training.group().rank(); ++step) {
    training.backward(step);
    training.read_all();
  }
  join.finish();
}

/// A row that a parameter does not have is found in finalize, by all ranks.
void give_a_stray_row(Embeddings& training) {
  const int last = training.group().size() - 1;
  training.reducer().prepare_for_backward();
  training.mark_dense(0);
  training.mark(0, 0);
  training.mark(1, 0, training.group().rank() == last ? std::optional<std::int64_t>(5) : std::nullopt);
  training.mark(2, 0);
  try {
    training.reducer().finalize();
    check(false, "a row that is none was taken");
  } catch (const Error& error) {
    check(error.code() == ErrorCode::invalid_argument && error.ranks() == std::vector<int>{last}, error.what());
    const char* const cause =
        training.group().rank() == last ? "there is no row 5 of 'table1'" : "other ranks have rows";
    check(error.cause().find(cause) != std::string::npos, error.what());
  }
  training.reducer().change_group(training.group());
  training.backward(1);
  training.read_all();
}

}  // namespace

void average_rows(World& world, ProcessGroup& group) {
  const auto compare = [&](const std::string& name, bool find_unused, const std::function<void(Embeddings&)>& body) {
    for (const bool own_memory : {false, true}) {
      HostGradients host;
      DeviceGradients device(world.local_rank());
      for (GradientPlace* const place : {static_cast<GradientPlace*>(&host), static_cast<GradientPlace*>(&device)}) {
        Embeddings training(group, *place, own_memory, find_unused);
        body(training);
        place->finish();
      }
      check(host.finish() == device.finish(), fmt::format("{} on the device differ from those on the CPU", name));
    }
  };
  compare("sparse gradients", false, take_sparse_steps);
  compare("accumulated sparse gradients", true, accumulate_rows);
  compare("sparse gradients of ranks with other inputs", false, run_out_of_rows);
  DeviceGradients device(world.local_rank());
  Embeddings training(group, device, true);
  give_a_stray_row(training);
  device.finish();
}

}  // namespace ddp::test
