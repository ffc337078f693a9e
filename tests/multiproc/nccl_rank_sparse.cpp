// Sparse gradients on the device have the average of the same on the CPU.
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ddp/ddp.hpp>

#include "nccl_rank.hpp"
#include "nccl_rank_gradients.hpp"

namespace ddp::test {
namespace {

struct Table {
  DType dtype;
  std::int64_t rows;
  std::int64_t width;
};
const std::vector<Table> kTables{{DType::float32, 9, 3}, {DType::float64, 5, 2}, {DType::bfloat16, 7, 5}};
constexpr std::size_t kDense = 3;  ///< the parameter behind them

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span{values});
  return {bytes.begin(), bytes.end()};
}

/// Tables and a dense parameter in a place, whose last stream but the program's computes every other table.
class Embeddings {
 public:
  Embeddings(ProcessGroup& group, GradientPlace& place, bool own_memory, bool find_unused = false)
      : group_(group), place_(place), reducer_(make(own_memory, find_unused)) {}

  Reducer& reducer() { return reducer_; }
  ProcessGroup& group() { return group_; }
  static int producer_of(std::size_t table) { return static_cast<int>(table % 2); }

  /// Some rows, maybe none, some of them several times.
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

/// Rows of a step of no_sync, and tables that ranks do not use.
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
  // a rank without rows waits for no device, while it still reads what it had in the other group
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
