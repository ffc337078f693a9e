// One rank of a job that exercises a key-value store under a real launcher: values of awkward sizes and bytes, many
// keys, several fences, and ranks that never arrive. Exit status 0 when everything was as the contract says, 1 when
// not, 2 for a wrong command line. Prints one line a rank.
//
//   srun -N4 -n8 --mpi=pmi2 kvs_exercise --store pmi2 [--absent RANK]... [--late RANK] [--late-ms N] [--timeout-ms N]
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>

#include "kvs/pmi2_store.hpp"

namespace {

using std::chrono::milliseconds;

struct Options {
  std::string store = "pmi2";
  std::vector<int> absent;
  int late = -1;
  milliseconds late_by{700};
  milliseconds timeout{30'000};
};

int number(std::string_view text) {
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) throw std::invalid_argument(std::string(text));
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(std::string(name));
    const std::string_view value = argv[i + 1];
    if (name == "--store") {
      options.store = value;
    } else if (name == "--absent") {
      options.absent.push_back(number(value));
    } else if (name == "--late") {
      options.late = number(value);
    } else if (name == "--late-ms") {
      options.late_by = milliseconds(number(value));
    } else if (name == "--timeout-ms") {
      options.timeout = milliseconds(number(value));
    } else {
      throw std::invalid_argument(std::string(name));
    }
  }
  std::sort(options.absent.begin(), options.absent.end());
  return options;
}

std::unique_ptr<ddp::KeyValueStore> connect(const std::string& name, ddp::Deadline deadline) {
  if (name == "pmi2") {
    return std::make_unique<ddp::kvs::Pmi2Store>(ddp::base::Environment::process(), deadline);
  }
  throw std::invalid_argument("--store " + name);
}

// Bytes that differ by rank and position and take all values.
ddp::Bytes pattern(int rank, std::size_t size) {
  ddp::Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 131 + i / 256 + static_cast<std::size_t>(rank) * 17) & 0xffU);
  }
  return bytes;
}

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("not as it should be: " + what);
}

constexpr std::array<std::size_t, 6> kSizes = {0, 1, 1023, 1024, 70'000, 1 << 20};
constexpr int kManyKeys = 200;

void exchange(ddp::KeyValueStore& store, ddp::Deadline deadline) {
  for (const std::size_t size : kSizes) store.put(fmt::format("size.{}", size), pattern(store.rank(), size));
  for (int i = 0; i < kManyKeys; ++i) store.put(fmt::format("many-{}", i), pattern(store.rank() + i, 20));
  store.fence(deadline);
  for (int rank = 0; rank < store.world_size(); ++rank) {
    // The large ones of two neighbours only: 64 ranks reading 64 MiB each would measure the machine, not the store.
    const bool neighbour = (rank - store.rank() + store.world_size()) % store.world_size() <= 1;
    for (const std::size_t size : kSizes) {
      if (size > 2000 && !neighbour) continue;
      expect(store.get(rank, fmt::format("size.{}", size), deadline) == pattern(rank, size),
             fmt::format("value of {} bytes of rank {}", size, rank));
    }
    expect(store.get(rank, fmt::format("many-{}", kManyKeys - 1), deadline) == pattern(rank + kManyKeys - 1, 20),
           fmt::format("last of many keys of rank {}", rank));
    try {
      store.get(rank, "never-put", deadline);
      expect(false, "a key that nobody put was found");
    } catch (const ddp::Error& error) {
      expect(error.code() == ddp::ErrorCode::not_found, error.what());
    }
  }
  for (int round = 0; round < 10; ++round) store.fence(deadline);
}

void run(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto deadline = ddp::Deadline::after(options.timeout);
  auto store = connect(options.store, deadline);
  const int rank = store->rank();
  if (rank == options.late) std::this_thread::sleep_for(options.late_by);
  if (options.absent.empty()) {
    exchange(*store, deadline);
    store->close();
    const auto took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
    fmt::print("rank {} of {}: ok, {} ms\n", rank, store->world_size(), took.count());
    return;
  }
  store->fence(deadline);  // so that the fence that fails is not the first one
  if (std::binary_search(options.absent.begin(), options.absent.end(), rank)) {
    std::this_thread::sleep_for(options.timeout + std::chrono::seconds(1));
    fmt::print("rank {}: stayed away\n", rank);
    return;
  }
  try {
    store->fence(deadline);
    expect(false, "the fence ended without all ranks");
  } catch (const ddp::Error& error) {
    expect(error.code() == ddp::ErrorCode::timeout, error.what());
    expect(error.ranks() == options.absent,
           fmt::format("named {}: {}", ddp::format_ranks(error.ranks()), error.what()));
    fmt::print("rank {}: {}\n", rank, error.what());
  }
  const auto over = ddp::Deadline::Clock::now() - deadline.when();
  expect(over < std::chrono::seconds(1), "the deadline was kept");
  try {
    store->put("after", pattern(rank, 1));
    expect(false, "the store can be used after a failed fence");
  } catch (const ddp::Error& error) {
    expect(error.code() == ddp::ErrorCode::unavailable, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  try {
    options = parse(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvs_exercise: wrong argument: {}\n", error.what());
    return 2;
  }
  try {
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvs_exercise: {}\n", error.what());
    return 1;
  }
  return 0;
}
