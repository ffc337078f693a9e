// What a flight record costs an operation: called, begun, finished.
#include <benchmark/benchmark.h>

#include <vector>

#include "collectives/flight/flight_recorder.hpp"

namespace {

using namespace ddp;
using namespace ddp::collectives;

constexpr std::size_t kRecords = 2000;  // the default

std::shared_ptr<FlightGroup> group_of(FlightRecorder& recorder) {
  return recorder.join({.name = "world", .backend = "host", .rank = 0, .global_ranks = {0, 1}});
}

Operation all_reduce(std::vector<float>& values) {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.count = values.size();
  operation.input = operation.output = values;
  return operation;
}

/// The record alone, as it is written when an operation is called.
void record(benchmark::State& state) {
  FlightRecorder recorder(kRecords);
  const auto group = group_of(recorder);
  std::vector<float> values(256);
  Operation operation = all_reduce(values);
  for (auto _ : state) {
    ++operation.sequence;
    benchmark::DoNotOptimize(group->record(operation));
  }
}

/// All three writes of an operation's life.
void whole_life(benchmark::State& state) {
  FlightRecorder recorder(kRecords);
  const auto group = group_of(recorder);
  std::vector<float> values(256);
  Operation operation = all_reduce(values);
  for (auto _ : state) {
    ++operation.sequence;
    const FlightGroup::Slot slot = group->record(operation);
    group->started(slot);
    group->finished(slot, true);
  }
}

void labelled(benchmark::State& state) {
  FlightRecorder recorder(kRecords);
  const auto group = group_of(recorder);
  std::vector<float> values(256);
  Operation operation = all_reduce(values);
  const FlightLabel label("the gradients of layer 12");
  for (auto _ : state) {
    ++operation.sequence;
    benchmark::DoNotOptimize(group->record(operation));
  }
}

BENCHMARK(record);
BENCHMARK(labelled);
BENCHMARK(whole_life);

}  // namespace

BENCHMARK_MAIN();
