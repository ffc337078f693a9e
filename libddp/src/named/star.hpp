// Connections of all ranks to rank 0, over which they agree on named operations: proven by the handshake of the TCP
// backend, read by a thread that sleeps while nothing comes.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>
#include <ddp/process_group.hpp>

#include "base/unique_fd.hpp"

namespace ddp::named {

/// What the thread of a Star calls, one call at a time.
class StarUser {
 public:
  StarUser() = default;
  StarUser& operator=(StarUser&&) = delete;
  virtual ~StarUser() = default;

  /// A message of @p rank of the group. What it throws counts as the loss of that rank.
  virtual void arrived(int rank, const Bytes& message) = 0;
  /// The connection to @p rank has ended. Called once for each.
  virtual void lost(int rank, const std::string& cause) = 0;
  /// All that has come has been passed on, or wake() was called, or the time has come that the last call returned.
  /// @return when to call it again, at the latest; nothing: when something happens.
  virtual std::optional<Deadline> round() = 0;
};

class Star {
 public:
  /// Collective over @p group. Throws Error.
  explicit Star(ProcessGroup& group);
  Star& operator=(Star&&) = delete;
  /// After end().
  ~Star();

  /// From now on @p user is called, which must outlive end().
  void begin(StarUser& user);
  /// Queues @p message for @p rank: rank 0, or of rank 0 any other. Never blocks. From any thread.
  void send(int rank, std::span<const std::byte> message);
  /// Makes the thread call round().
  void wake() const noexcept { wake_.ring(); }
  /// Sends what is queued, for a second at most, and ends the thread. Not from that thread.
  void end() noexcept;
  std::uint64_t wake_ups() const noexcept { return wake_ups_.load(std::memory_order_relaxed); }

 private:
  struct Connection {
    int rank = 0;
    base::UnsharedFd socket{};
    bool open = true;
    Bytes incoming{};
    std::mutex mutex{};  ///< guards what follows
    std::deque<Bytes> outgoing{};
    std::size_t sent = 0;  ///< of the first
  };

  void accept_all(ProcessGroup& group, const std::vector<Bytes>& records);
  void reach_first(ProcessGroup& group, const std::vector<Bytes>& records);
  void run();
  void receive(Connection& connection);
  static bool flush(Connection& connection);
  static bool is_waiting(Connection& connection);

  std::vector<std::unique_ptr<Connection>> connections_;  ///< of rank 0 to all others, else of one
  const pid_t process_ = ::getpid();
  base::WakeEvent wake_;
  StarUser* user_ = nullptr;
  std::atomic<bool> ending_{false};
  std::atomic<std::uint64_t> wake_ups_{0};
  std::thread thread_;
  class Listener;
  std::unique_ptr<Listener> listener_;  ///< until all have come
};

}  // namespace ddp::named
