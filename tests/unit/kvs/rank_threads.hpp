// Ranks as threads of a test, and the values that they exchange.
#pragma once

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>
#include <ddp/key_value_store.hpp>

#include "support/error_of.hpp"
#include "support/sanitized.hpp"

namespace ddp::test {

/// What a busy machine may add to a deadline before a thread that met it can say so.
inline constexpr std::chrono::seconds kBusyMachine{5};

inline Deadline soon(int ms = 20'000) { return Deadline::after(std::chrono::milliseconds(ms)); }

/// Runs @p body once per rank, each in a thread, and rethrows the first exception.
inline void run_ranks(int world_size, const std::function<void(int rank)>& body) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// Sizes around every limit of a store: empty, PMI-2's longest value, and many of its texts.
inline constexpr std::array<std::size_t, 8> kAwkwardSizes = {0,    1,    255,    256,
                                                             1023, 1024, 70'000, ::ddp::test::cases(1 << 20)};

/// All byte values, different for every rank. The first ones are those that text protocols trip over.
inline Bytes awkward_value(int rank, std::size_t size) {
  constexpr std::array<unsigned char, 8> kFirst = {';', '\0', '\n', '=', 0xff, ' ', ':', '%'};
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t value = i < kFirst.size() ? kFirst[i] : i * 7 + i / 256 + static_cast<std::size_t>(rank) * 31;
    bytes[i] = static_cast<std::byte>(value & 0xffU);
  }
  return bytes;
}

}  // namespace ddp::test
