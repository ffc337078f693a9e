// What a rank costs: rank 0 prints a line of JSON with the start's times and, after every kind of operation,
// connections, shared memory and resident memory of the ranks.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ddp/ddp.hpp>

#include "process_costs.hpp"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kSmall = 16;                           // elements
constexpr std::size_t kLarge = (1U << 20U) / sizeof(float);  // 1 MiB, in which backends use their buffers
constexpr auto kPatience = std::chrono::seconds(600);

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Mean and greatest of the ranks' values.
std::string spread_of(ddp::ProcessGroup& group, double value) {
  double sum = value;
  group.all_reduce(std::span{&sum, 1}).wait();
  group.all_reduce(std::span{&value, 1}, ddp::ReduceOp::max).wait();
  return "[" + std::to_string(sum / group.size()) + ", " + std::to_string(value) + "]";
}

void use_everything(ddp::ProcessGroup& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  for (const std::size_t count : {kSmall, kLarge}) {
    const std::size_t part = std::max(count / ranks, std::size_t{1});
    std::vector<float> whole(part * ranks);
    std::vector<float> other(part * ranks);
    const std::span<float> one(other.data(), part);
    group.all_reduce(whole).wait();
    group.broadcast(whole, 0).wait();
    group.all_gather(one, whole).wait();
    group.reduce_scatter(whole, one).wait();
    group.all_to_all(whole, other).wait();
  }
  group.barrier().wait();
}

void run() {
  auto start = Clock::now();
  ddp::World world = ddp::World::init();
  const double init_ms = milliseconds_since(start);
  start = Clock::now();
  ddp::ProcessGroup group = ddp::make_process_group(world);
  const double group_ms = milliseconds_since(start);
  double one = 1;
  group.all_reduce(std::span{&one, 1}).wait();
  const double first_ms = milliseconds_since(start);
  start = Clock::now();
  group.all_reduce(std::span{&one, 1}).wait();
  const double second_ms = milliseconds_since(start);
  const double early_connections = ddp::bench::traffic().connections;
  use_everything(group);

  const std::vector<std::string> shared{"memfd:", "/dev/shm/"};
  const std::vector<std::pair<std::string, double>> values{
      {"init_ms", init_ms},
      {"group_ms", group_ms},
      {"first_ms", first_ms},
      {"second_ms", second_ms},
      {"connections_after_first", early_connections},
      {"connections", ddp::bench::traffic().connections},
      {"shared_mapped_kib", ddp::bench::mapped_kib("smaps", "Size:", shared)},
      {"shared_own_kib", ddp::bench::mapped_kib("smaps", "Pss:", shared)},
      {"resident_kib", ddp::bench::mapped_kib("status", "VmRSS:")},
      {"own_kib", ddp::bench::mapped_kib("smaps_rollup", "Pss:")},
  };
  std::string line =
      "{\"ranks\": " + std::to_string(group.size()) + ", \"nodes\": " + std::to_string(world.num_nodes());
  for (const auto& [name, value] : values) line += ", \"" + name + "\": " + spread_of(group, value);
  group.barrier(ddp::Deadline::after(kPatience)).wait();
  if (group.rank() == 0) std::printf("%s}\n", line.c_str());
}

}  // namespace

int main() try {
  run();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "growth: %s\n", error.what());
  return 1;
}
