// What a store may hold in memory. PyTorch's programs keep addresses and NCCL's ids there, some hundred bytes a rank;
// objects of some MiB are rare.
#pragma once

#include <chrono>
#include <cstddef>

namespace ddp::store_server {

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
