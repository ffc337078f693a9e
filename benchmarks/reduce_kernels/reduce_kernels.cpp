// The loops that combine two buffers, in memory on one core: libddp's for every element type, Gloo's for float32. Shows
// whether the compiler vectorized them, which all_reduce over TCP would hide.
#include <benchmark/benchmark.h>
#include <gloo/math.h>

#include <string>
#include <vector>

#include "collectives/reduce_kernels.hpp"

namespace {

using Kernel = void (*)(void*, const void*, const void*, std::size_t);

void combine(benchmark::State& state, Kernel kernel, std::size_t element_bytes) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> left(bytes);
  std::vector<std::byte> right(bytes);
  for (auto _ : state) {
    kernel(left.data(), left.data(), right.data(), bytes / element_bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes));
}

void add(const std::string& name, Kernel kernel, std::size_t element_bytes) {
  benchmark::RegisterBenchmark(name.c_str(), combine, kernel, element_bytes)->Arg(64 << 10)->Arg(16 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  add("gloo::sum<float>", &gloo::sum<float>, sizeof(float));
  add("gloo::max<float>", &gloo::max<float>, sizeof(float));
  for (const auto dtype : {ddp::DType::float32, ddp::DType::float64, ddp::DType::float16, ddp::DType::bfloat16,
                           ddp::DType::int8, ddp::DType::int32, ddp::DType::int64, ddp::DType::boolean}) {
    for (const auto op : {ddp::ReduceOp::sum, ddp::ReduceOp::max}) {
      add(std::string(ddp::to_string(dtype)) + " " + std::string(ddp::to_string(op)),
          ddp::collectives::reduce_kernel(dtype, op), ddp::size_of(dtype));
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
