// Times the operations of one library: rank 0 prints a line of JSON for each operation and size. torch_gloo.py does the
// same.
//
//   bench_collectives_<library> MILLISECONDS SIZE...
//
// Calls follow one another for about MILLISECONDS a sample. SIZE is in bytes, of the largest buffer of a rank;
// operations of parts have parts of at least one element. Each result is verified before it is timed.
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "contender.hpp"

namespace ddp::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSamples = 5;
constexpr double kMostCalls = 20'000;

/// Rank i runs on the i-th of the processors that this process may use, from the first if there are fewer: the same for
/// all libraries, whatever their launchers do.
void bind_to_processor() {
  int rank = 0;
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') {
      rank = std::atoi(value);
      break;
    }
  }
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) throw std::runtime_error("sched_getaffinity failed");
  int skip = rank % CPU_COUNT(&allowed);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) throw std::runtime_error("sched_setaffinity failed");
    return;
  }
}

/// Buffers of one operation at one size.
struct Buffers {
  std::vector<float> input;
  std::vector<float> output;
  std::size_t part = 0;  ///< elements
};

struct Operation {
  const char* name;
  bool sized;   ///< not barrier
  bool parted;  ///< the size is that of all ranks' parts together
  bool paired;  ///< two ranks alone
  void (*run)(Contender&, Buffers&);
  /// What output[i] is when input[i] is (i % 7) + rank; of what run leaves in input where it works in place.
  float (*expected)(const Contender&, const Buffers&, std::size_t i);
};

float summed(const Contender& contender, std::size_t i) {
  const int ranks = contender.ranks();
  return static_cast<float>(ranks * static_cast<int>(i % 7) + ranks * (ranks - 1) / 2);
}

void ping_pong(Contender& contender, Buffers& buffers) {
  if (contender.rank() == 0) {
    contender.send(buffers.input.data(), buffers.input.size(), 1);
    contender.recv(buffers.input.data(), buffers.input.size(), 1);
  } else if (contender.rank() == 1) {
    contender.recv(buffers.input.data(), buffers.input.size(), 0);
    contender.send(buffers.input.data(), buffers.input.size(), 0);
  }
}

constexpr std::array kOperations{
    Operation{"barrier", false, false, false, [](Contender& contender, Buffers&) { contender.barrier(); },
              [](const Contender&, const Buffers&, std::size_t) { return 0.0F; }},
    Operation{"all_reduce", true, false, false,
              [](Contender& contender, Buffers& b) { contender.all_reduce(b.input.data(), b.input.size()); },
              [](const Contender& contender, const Buffers&, std::size_t i) { return summed(contender, i); }},
    Operation{"broadcast", true, false, false,
              [](Contender& contender, Buffers& b) { contender.broadcast(b.input.data(), b.input.size()); },
              [](const Contender&, const Buffers&, std::size_t i) { return static_cast<float>(i % 7); }},
    Operation{"all_gather", true, true, false,
              [](Contender& contender, Buffers& b) { contender.all_gather(b.input.data(), b.output.data(), b.part); },
              [](const Contender&, const Buffers& b, std::size_t i) {
                return static_cast<float>(i % b.part % 7 + i / b.part);
              }},
    Operation{
        "reduce_scatter", true, true, false,
        [](Contender& contender, Buffers& b) { contender.reduce_scatter(b.input.data(), b.output.data(), b.part); },
        [](const Contender& contender, const Buffers& b, std::size_t i) {
          return summed(contender, static_cast<std::size_t>(contender.rank()) * b.part + i);
        }},
    Operation{"all_to_all", true, true, false,
              [](Contender& contender, Buffers& b) { contender.all_to_all(b.input.data(), b.output.data(), b.part); },
              [](const Contender& contender, const Buffers& b, std::size_t i) {
                const std::size_t there = static_cast<std::size_t>(contender.rank()) * b.part + i % b.part;
                return static_cast<float>(there % 7 + i / b.part);
              }},
    Operation{"ping_pong", true, false, true, &ping_pong,
              [](const Contender&, const Buffers&, std::size_t i) { return static_cast<float>(i % 7); }},
};

Buffers make_buffers(const Operation& operation, const Contender& contender, std::size_t bytes) {
  const auto ranks = static_cast<std::size_t>(contender.ranks());
  Buffers buffers;
  const std::string name = operation.name;
  if (!operation.parted) {
    buffers.input.resize(operation.sized ? std::max(bytes / sizeof(float), std::size_t{1}) : 0);
    return buffers;
  }
  buffers.part = std::max(bytes / sizeof(float) / ranks, std::size_t{1});
  buffers.input.resize(buffers.part * (name == "all_gather" ? 1 : ranks));
  buffers.output.resize(buffers.part * (name == "reduce_scatter" ? 1 : ranks));
  return buffers;
}

/// A contender that does nothing must not win.
void verify(Contender& contender, const Operation& operation, Buffers& buffers) {
  const auto rank = static_cast<std::size_t>(contender.rank());
  for (std::size_t i = 0; i < buffers.input.size(); ++i) buffers.input[i] = static_cast<float>(i % 7 + rank);
  operation.run(contender, buffers);
  if (operation.paired && rank > 1) return;
  const auto& result = operation.parted ? buffers.output : buffers.input;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const float expected = operation.expected(contender, buffers, i);
    if (result[i] != expected) {
      throw std::runtime_error(std::string(operation.name) + ": element " + std::to_string(i) + " of " +
                               std::to_string(result.size()) + " on rank " + std::to_string(rank) + " is " +
                               std::to_string(result[i]) + " instead of " + std::to_string(expected));
    }
  }
  std::fill(buffers.input.begin(), buffers.input.end(), 0.0F);  // sums of sums must not grow
}

/// Seconds per call of the slowest rank.
double sample(Contender& contender, const Operation& operation, Buffers& buffers, std::size_t calls) {
  contender.barrier();
  const auto start = Clock::now();
  for (std::size_t call = 0; call < calls; ++call) operation.run(contender, buffers);
  const std::chrono::duration<double> elapsed = Clock::now() - start;
  const bool idle = operation.paired && contender.rank() > 1;
  return contender.max(idle ? 0 : elapsed.count()) / static_cast<double>(calls);
}

void measure(Contender& contender, const Operation& operation, std::size_t bytes, double seconds) {
  Buffers buffers = make_buffers(operation, contender, bytes);
  verify(contender, operation, buffers);
  double once = sample(contender, operation, buffers, 2);
  // the least of a few: while the processor is another process's, a call seems to take milliseconds
  for (int i = 0; i < kSamples && once < seconds; ++i) once = std::min(once, sample(contender, operation, buffers, 10));
  const auto calls = static_cast<std::size_t>(std::clamp(seconds / once, 2.0, kMostCalls));
  std::string samples;
  for (int i = 0; i < kSamples; ++i) {
    const double each = sample(contender, operation, buffers, calls) / (operation.paired ? 2 : 1);
    samples += (i > 0 ? ", " : "") + std::to_string(each * 1e6);
  }
  if (contender.rank() != 0) return;
  std::printf("{\"operation\": \"%s\", \"bytes\": %zu, \"ranks\": %d, \"microseconds\": [%s]}\n", operation.name,
              operation.sized ? bytes : 0, contender.ranks(), samples.c_str());
  std::fflush(stdout);
}

void run(double seconds, const std::vector<std::size_t>& sizes) {
  const auto contender = make_contender();
  for (const Operation& operation : kOperations) {
    // with more than two ranks, waiting ones would take the processors from the two
    if (operation.paired && contender->ranks() != 2) continue;
    for (const std::size_t bytes : operation.sized ? sizes : std::vector<std::size_t>{0})
      measure(*contender, operation, bytes, seconds);
  }
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) try {
  std::vector<std::size_t> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (sizes.empty()) {
    std::fprintf(stderr, "usage: %s MILLISECONDS SIZE...\n", argv[0]);
    return 2;
  }
  ddp::bench::bind_to_processor();
  ddp::bench::run(std::atof(argv[1]) / 1e3, sizes);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
  return 1;
}
