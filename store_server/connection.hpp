// One connection to the TCPStore server: its stage, its requests, and the answers to send.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.hpp"
#include "store_server/peer_address.hpp"
#include "store_server/store_protocol.hpp"
#include "store_server/witness_conversation.hpp"

namespace ddp::store_server {

enum class Stage {
  accepted,  ///< its first byte will tell a client from a witness
  asking,    ///< a client from another host, whose witness is asked; its bytes stay in the kernel, unread
  witness,
  client,
};

struct Connection {
  using Clock = std::chrono::steady_clock;

  Connection(base::UniqueFd descriptor, std::uint64_t number, const Endpoint& from, std::size_t most_request_bytes)
      : fd(std::move(descriptor)), serial(number), peer(from), parser(most_request_bytes) {}

  base::UniqueFd fd;
  std::uint64_t serial;  ///< ascending; descriptors are reused
  Endpoint peer;
  bool admitted = false;  ///< it is the job's user's
  bool silent = true;     ///< nothing has come from it
  Stage stage = Stage::accepted;
  std::unique_ptr<WitnessConversation> witness;
  bool resident = false;  ///< a witness that answers questions
  RequestParser parser;
  std::string outbox;
  std::size_t sent = 0;                    ///< bytes of the outbox that the kernel has
  bool writing = false;                    ///< watched for EPOLLOUT
  bool queued = false;                     ///< in the server's list of outboxes to flush
  bool parked = false;                     ///< not read: others must make room first
  bool large = false;                      ///< one of the large requests that may be received at a time
  std::size_t counted_bytes = 0;           ///< of unread(), in the server's sum
  Clock::time_point moved = Clock::now();  ///< when bytes last came or went

  std::size_t unread() const { return outbox.size() - sent; }
  /// Sends what the kernel takes of the outbox. False when the client is gone.
  bool send_some() noexcept;
};

/// Neither end has closed this connection, so that its addresses and ports are no other one's.
bool is_established(int fd) noexcept;

}  // namespace ddp::store_server
