// The secret of a store and its witnesses, new for each store.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::store_server {

class StoreKey {
 public:
  static constexpr std::size_t kBytes = 32;
  using Bytes = std::array<std::uint8_t, kBytes>;

  /// From getrandom(2). Throws Error(system).
  static StoreKey make();
  /// 64 hexadecimal digits. Throws Error(invalid_argument), which does not show it, for anything else.
  static StoreKey parse(std::string_view text);

  std::string text() const;  ///< for parse()
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_{};
};

/// Random bytes that nobody else has got. Throws Error(system).
std::array<std::uint8_t, 32> random_bytes();

// What a store may hold in memory. PyTorch's programs keep addresses and NCCL's ids there, some hundred bytes a rank;
// objects of some MiB are rare.

inline constexpr std::size_t kMiB = std::size_t{1024} * 1024;

struct StoreLimits {
  /// One request with all of its keys and values.
  std::size_t request_bytes = 32 * kMiB;
  /// One answer; and all answers that a client has not read.
  std::size_t answer_bytes = 64 * kMiB;
  /// Keys, values, queues and waits of all clients, with what it takes to find them.
  std::size_t stored_bytes = 1024 * kMiB;
  /// Unread answers of all clients. Beyond it, requests wait until others have read.
  std::size_t unread_bytes = 256 * kMiB;
  /// Requests above kLargeBytes that are received at a time: further ones wait.
  std::size_t large_requests = 8;
  static constexpr std::size_t kLargeBytes = kMiB / 16;
  /// A client for which others wait is closed when nothing of its request or answers has moved for this time.
  std::chrono::milliseconds stall = std::chrono::seconds(30);
};

}  // namespace ddp::store_server
