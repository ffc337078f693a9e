// The loops that combine buffers, in memory on one core: libddp's for every element type, set of vector instructions
// and some numbers of sources, and memcpy, which no loop can beat. Shows whether the compiler vectorized them, which
// collectives would hide.
#include <benchmark/benchmark.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "collectives/reduce_kernels.hpp"

namespace {

using ddp::DType;
using ddp::ReduceOp;

/// Combines sources of some bytes each into a buffer.
using Kernel = std::function<void(void* out, const std::vector<const void*>& sources, std::size_t bytes)>;

/// The buffers together always have the same size, so that all numbers of sources meet the same caches.
void combine(benchmark::State& state, const Kernel& kernel, std::size_t n) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) / (n + 1) / 64 * 64;
  std::vector<std::byte> out(bytes);
  std::vector<std::vector<std::byte>> memory(n, std::vector<std::byte>(bytes));
  std::vector<const void*> sources;
  for (const auto& source : memory) sources.push_back(source.data());
  for (auto _ : state) {
    kernel(out.data(), sources, bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes * n));
}

void add(const std::string& name, const Kernel& kernel, std::size_t n) {
  benchmark::RegisterBenchmark(name.c_str(), combine, kernel, n)->Arg(192 << 10)->Arg(96 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  add(
      "memcpy:1:-", [](void* out, const auto& from, std::size_t bytes) { std::memcpy(out, from[0], bytes); }, 1);
  for (const auto simd : ddp::collectives::usable_simd()) {
    for (const auto dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int8, DType::int32,
                             DType::int64, DType::boolean}) {
      for (const auto op : {ReduceOp::sum, ReduceOp::max}) {
        for (const std::size_t n : {2, 4, 8}) {
          if (n > 2 && (op != ReduceOp::sum || dtype == DType::int8 || dtype == DType::int64)) continue;
          const ddp::collectives::Reduction reduction(dtype, op, static_cast<int>(n),
                                                      ddp::collectives::reduce_loops(simd));
          add(
              std::string(to_string(dtype)) + " " + std::string(to_string(op)) + ":" + std::to_string(n) + ":" +
                  std::string(to_string(simd)),
              [reduction, dtype](void* out, const auto& from, std::size_t bytes) {
                reduction.combine(out, from, bytes / size_of(dtype));
              },
              n);
        }
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
