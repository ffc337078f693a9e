// Where the ranks of a communicator meet: a file that all map, named after the unique id. Ranks are processes, or
// threads of one. Data goes through it in pieces: a slot a rank for collectives, a mailbox a pair for sends.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "settings.hpp"

namespace fake_nccl {

inline constexpr std::size_t kSlotBytes = 64 * 1024;
inline constexpr std::size_t kMailboxBytes = 16 * 1024 - 64;

/// What a rank is about to do; equal on all.
struct CallRecord {
  std::uint32_t function;
  std::uint32_t type;
  std::uint32_t op;
  std::int32_t root;
  std::uint64_t count;
  bool operator==(const CallRecord&) const = default;
};

enum class Presence : std::uint32_t { absent, joined, left };

struct RankPlace {
  std::atomic<Presence> presence;
  pid_t pid;
  std::uint64_t start_time;  ///< of the process, by which a pid that is used again differs
  int version;
  char device[96];                  // NOLINT(*-avoid-c-arrays): shared memory; host and PCI bus id
  std::atomic<std::uint64_t> step;  ///< of collectives: odd: its slot is filled; even: it has read all slots
  CallRecord call;
  std::atomic<std::uint64_t> talk_step;  ///< of exchanges among the threads that set up: as step
  char talk[160];                        // NOLINT(*-avoid-c-arrays)
};

struct Mailbox {
  std::atomic<std::uint64_t> written;
  std::atomic<std::uint64_t> read;
  std::uint64_t message_bytes;  ///< of the whole message
  std::uint32_t type;
  std::uint32_t piece_bytes;
  char data[kMailboxBytes];  // NOLINT(*-avoid-c-arrays)
};

/// Move-less; unmaps when it goes away. Members from any thread.
class Room {
 public:
  /// Makes or opens it. Throws std::system_error.
  Room(const std::string& name, int size);
  Room& operator=(Room&&) = delete;
  ~Room();

  int size() const { return size_; }
  const std::string& name() const { return name_; }
  RankPlace& place(int rank) const;
  std::byte* slot(int rank) const;
  Mailbox& mailbox(int from, int to) const;
  /// Of ncclCommGrow: how many were announced, and the last.
  std::atomic<std::uint64_t>& grow_number() const;
  char* grow_id() const;

  /// Takes the rank's place and waits for all others. False: stopped, or it never can be (which was complained of).
  bool join(int rank, int version, const std::string& device, const Stop& stop);
  void leave(int rank);
  /// The lowest rank that has died or left; -1: none.
  int missing() const;
  /// Everybody's 160 bytes, into their places; all ranks call it. False: stopped.
  bool exchange(int rank, const void* data, std::size_t bytes, const Stop& stop);
  /// They may be overwritten from here on.
  void exchanged(int rank);

 private:
  struct Head;
  Head& head() const;

  std::string name_;
  std::string path_;
  int size_;
  std::size_t bytes_;
  std::byte* memory_ = nullptr;
};

}  // namespace fake_nccl
