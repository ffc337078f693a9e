// The cost of reading a machine and placing ranks on it: the live machine, and each XML file named after Google
// Benchmark's own options.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <ddp/topology.hpp>

namespace {

void load_live(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(ddp::Topology::live());
}

void load_xml(benchmark::State& state, const std::string& xml) {
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(ddp::Topology::from_xml(xml));
}

void place_ranks(benchmark::State& state, const ddp::Topology& topology, int ranks) {
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(ddp::place(topology, {.num_ranks = ranks}));
  }
}

void add_machine(const std::string& path) {
  std::ifstream file(path);
  const std::string xml{std::istreambuf_iterator<char>(file), {}};
  const auto topology = ddp::Topology::from_xml(xml, path);
  const std::string name = std::filesystem::path(path).stem();
  benchmark::RegisterBenchmark(("load/" + name).c_str(), [xml](benchmark::State& state) { load_xml(state, xml); });
  for (const int ranks : {std::max(1, static_cast<int>(topology.gpus().size())), 64}) {
    benchmark::RegisterBenchmark(("place/" + name + "/" + std::to_string(ranks)).c_str(),
                                 [topology, ranks](benchmark::State& state) { place_ranks(state, topology, ranks); });
  }
}

}  // namespace

int main(int argc, char** argv) try {
  benchmark::Initialize(&argc, argv);
  benchmark::RegisterBenchmark("load/this machine", load_live);
  for (int i = 1; i < argc; ++i) add_machine(argv[i]);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_topology: %s\n", error.what());
  return 1;
}
