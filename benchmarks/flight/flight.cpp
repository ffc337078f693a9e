// What a flight record costs an operation: called, begun, finished.
#include <benchmark/benchmark.h>

#include <vector>

#include "collectives/flight/flight_recorder.hpp"

namespace {

using namespace ddp;
using namespace ddp::collectives;

constexpr std::size_t kRecords = 2000;  // the default

/// @p write writes an operation's record to its group.
template <class Write>
void measure(benchmark::State& state, const Write& write) {
  FlightRecorder recorder(kRecords);
  const auto group = recorder.join({.name = "world", .backend = "host", .rank = 0, .global_ranks = {0, 1}});
  std::vector<float> values(256);
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.count = values.size();
  operation.input = operation.output = values;
  for (auto _ : state) {
    ++operation.sequence;
    write(*group, operation);
  }
}

/// The record alone, as it is written when an operation is called.
void record(benchmark::State& state) {
  measure(state, [](auto& group, const auto& operation) { benchmark::DoNotOptimize(group.record(operation)); });
}

/// All three writes of an operation's life.
void whole_life(benchmark::State& state) {
  measure(state, [](auto& group, const auto& operation) {
    const FlightGroup::Slot slot = group.record(operation);
    group.started(slot);
    group.finished(slot, true);
  });
}

void labelled(benchmark::State& state) {
  const FlightLabel label("the gradients of layer 12");
  record(state);
}

BENCHMARK(record);
BENCHMARK(labelled);
BENCHMARK(whole_life);

}  // namespace

BENCHMARK_MAIN();
