// One client's connection to the TCPStore server: how far it has come, what it has sent, and what it is still to get.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"
#include "store_server/admission_message.hpp"
#include "store_server/peer_address.hpp"
#include "store_server/store_protocol.hpp"

namespace ddp::store_server {

/// Where the server has no secret, all connections are clients.
enum class Stage {
  arrived,               ///< its first byte will tell a client from an admission request
  requesting_admission,  ///< it has begun to request
  waiting,               ///< a client whose address is not admitted: what it sends stays in the kernel, unread
  answered,              ///< its request was right; it closes the connection next
  client,
};

/// What a connection begins with.
enum class Opening { incomplete, client, valid_request, invalid_request, neither, gone };

struct Connection {
  base::UniqueFd fd;
  std::uint64_t serial = 0;  ///< tells it from others that had the same descriptor; ascending
  PeerAddress peer;
  Stage stage = Stage::client;
  AdmissionReader request;
  RequestParser parser;
  std::string outbox;
  std::size_t sent = 0;  ///< bytes of the outbox that the kernel has taken
  bool writing = false;  ///< epoll reports when the kernel can take more
  bool queued = false;   ///< in the list of those to be flushed

  std::size_t unread() const { return outbox.size() - sent; }
  /// Reads on in what an arrived or requesting_admission connection begins with: an admission request, and of anything
  /// else nothing.
  Opening read_opening(const AdmissionMessage& right) noexcept;
  /// Gives the kernel what it takes of the outbox. False when the client is gone.
  bool send_some() noexcept;
};

}  // namespace ddp::store_server
