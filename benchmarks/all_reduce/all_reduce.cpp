// What a process group adds to Gloo: float32 sum in place, all contenders in one run. Start it with ddprun on one host;
// rank 0 prints one line of JSON per contender and size.
//
//   all_reduce [ROUNDS]
//
// Google Benchmark does not fit: it chooses the number of calls in each process, where all ranks must make the same
// number, and contenders must take turns within a round for the ratios to mean something.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "contender.hpp"

namespace ddp::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Contenders = std::vector<std::unique_ptr<Contender>>;

constexpr std::size_t kSmallestBytes = std::size_t{1} << 10U;
constexpr std::size_t kLargestBytes = std::size_t{64} << 20U;
// Buffers take turns, like gradient buckets: a single one would stay in a cache that a real step evicts.
constexpr std::size_t kBuffers = 4;
// Bytes moved per sample, so that the clock and a single scheduling delay weigh little.
constexpr std::size_t kSampleBytes = std::size_t{1} << 20U;
constexpr std::size_t kMostCalls = 64;

/// Ranks contribute different numbers and expect their sum: a contender that does nothing must not win.
void verify(World& world, Contender& contender, std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i % 7) + static_cast<std::size_t>(world.rank()));
  contender.all_reduce(values);
  const auto ranks = static_cast<std::size_t>(world.world_size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<float>(ranks * (i % 7) + ranks * (ranks - 1) / 2)) {
      throw std::runtime_error(
          fmt::format("{}: element {} of {} is {}", contender.name(), i, values.size(), values[i]));
    }
  }
}

/// Seconds per call on this rank.
double sample(ProcessGroup& group, Contender& contender, std::vector<std::vector<float>>& buffers, std::size_t calls) {
  group.barrier().wait();
  const auto start = Clock::now();
  for (std::size_t call = 0; call < calls; ++call) contender.all_reduce(buffers[call % buffers.size()]);
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(calls);
}

/// samples[contender][round] of the slowest rank.
std::vector<std::vector<double>> measure(World& world, ProcessGroup& group, Contenders& contenders, std::size_t bytes,
                                         std::size_t rounds) {
  std::vector<std::vector<float>> buffers(kBuffers, std::vector<float>(bytes / sizeof(float)));
  for (const auto& contender : contenders) verify(world, *contender, buffers[0]);
  for (auto& buffer : buffers) std::fill(buffer.begin(), buffer.end(), 0.0F);  // sums of sums must not grow
  const std::size_t calls = std::clamp(kSampleBytes / bytes, std::size_t{1}, kMostCalls);
  for (const auto& contender : contenders) sample(group, *contender, buffers, kBuffers);  // faults all pages in

  std::vector<std::vector<double>> samples(contenders.size(), std::vector<double>(rounds));
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
      const std::size_t which = (round + turn) % contenders.size();
      samples[which][round] = sample(group, *contenders[which], buffers, calls);
    }
  }
  for (auto& series : samples) group.all_reduce(series, ReduceOp::max).wait();
  return samples;
}

void run(std::size_t rounds) {
  World world = World::init();
  ProcessGroup group = make_process_group(world, "gloo");
  Contenders contenders;
  contenders.push_back(process_group_contender(world));
  contenders.push_back(direct_contender(world, Combine::libddp));
  contenders.push_back(direct_contender(world, Combine::gloo));
  for (std::size_t bytes = kSmallestBytes; bytes <= kLargestBytes; bytes *= 4) {
    const auto samples = measure(world, group, contenders, bytes, rounds);
    if (world.rank() != 0) continue;
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      fmt::print("{{\"ranks\": {}, \"bytes\": {}, \"contender\": \"{}\", \"seconds\": [{}]}}\n", world.world_size(),
                 bytes, contenders[i]->name(), fmt::join(samples[i], ", "));
    }
  }
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 25;
  if (argc > 2 || rounds < 1) {
    fmt::print(stderr, "usage: {} [ROUNDS]\n", argv[0]);
    return 2;
  }
  try {
    ddp::bench::run(static_cast<std::size_t>(rounds));
  } catch (const std::exception& error) {
    fmt::print(stderr, "all_reduce: {}\n", error.what());
    return 1;
  }
  return 0;
}
