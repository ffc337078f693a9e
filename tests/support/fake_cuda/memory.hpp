// Device memory: one arena of host memory for each device, in which freed and fresh bytes are poison, so that what is
// used too late or too early gives NaN and not a plausible number. Under address sanitizer such use is reported where
// it happens.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "tests/support/fake_cuda/symbols.hpp"

namespace fake_cuda {

inline constexpr unsigned char kPoison = 0xff;  // a NaN in each floating-point type, -1 as an integer

enum class MemoryKind { device, pinned, registered };

struct Allocation {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  int device = 0;
  bool freeing = false;  ///< cuMemFreeAsync was called
  unsigned long long id = 0;
};

class Memory {
 public:
  /// Reserves an arena for the next device; its pages come when they are used.
  void add_device(std::size_t bytes);

  /// A null pointer if there is no room.
  void* allocate(int device, std::size_t bytes);
  /// Frees what begins at @p address; false if nothing does.
  bool release(std::uintptr_t address);
  /// As cuMemFreeAsync: no second free from now on.
  bool mark_freeing(std::uintptr_t address);

  /// Memory of the host; false if it overlaps with some.
  bool enter_host(void* address, std::size_t bytes, MemoryKind kind, int device);
  /// False if none of this kind begins there.
  bool remove_host(void* address, MemoryKind kind);

  /// What contains all of these bytes.
  std::optional<Allocation> find(std::uintptr_t address, std::size_t bytes) const;
  /// Whether an address lies in an arena, allocated or not.
  bool in_arena(std::uintptr_t address) const;

  std::size_t free_bytes(int device) const;
  std::size_t total_bytes(int device) const;
  std::size_t live_allocations() const;

 private:
  struct Arena {
    std::uintptr_t base = 0;
    std::size_t bytes = 0;
    std::size_t used = 0;
    std::map<std::uintptr_t, std::size_t> holes;
    /// Freed blocks, oldest first: their memory is not given out again soon.
    std::deque<std::pair<std::uintptr_t, std::size_t>> quarantine;
    std::size_t quarantined = 0;
  };
  std::uintptr_t take_hole(Arena& arena, std::size_t block);
  static void make_hole(Arena& arena, std::uintptr_t address, std::size_t block);
  static void unquarantine(Arena& arena, std::size_t keep);

  mutable std::mutex mutex_;
  std::deque<Arena> arenas_;
  std::map<std::uintptr_t, Allocation> live_;
  unsigned long long last_id_ = 0;
};

Memory& memory();

}  // namespace fake_cuda
