// One connection to the TCPStore server: its stage, its requests, and the answers to send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"
#include "store_server/admission_message.hpp"
#include "store_server/peer_address.hpp"
#include "store_server/store_protocol.hpp"

namespace ddp::store_server {

/// Without a secret, every connection is a client from the start.
enum class Stage {
  accepted,              ///< its first byte will tell a client from an admission request
  requesting_admission,  ///< it has sent part of a request
  held,                  ///< a client whose address is not admitted: its bytes stay in the kernel, unread
  answered,              ///< its request was valid; it closes the connection next
  client,
};

/// How a connection begins.
enum class Opening { incomplete, client, valid_request, invalid_request, neither, gone };

struct Connection {
  base::UniqueFd fd;
  std::uint64_t serial = 0;  ///< ascending; descriptors are reused
  PeerAddress peer;
  Stage stage = Stage::client;
  AdmissionReader request;
  RequestParser parser;
  std::string outbox;
  std::size_t sent = 0;  ///< bytes of the outbox that the kernel has
  bool writing = false;  ///< watched for EPOLLOUT
  bool queued = false;   ///< in the server's list of outboxes to flush

  std::size_t unread() const { return outbox.size() - sent; }
  /// For the stages accepted and requesting_admission: reads more of an admission request; of anything else, nothing.
  Opening read_opening(const AdmissionMessage& expected) noexcept;
  /// Sends what the kernel takes of the outbox. False when the client is gone.
  bool send_some() noexcept;
};

}  // namespace ddp::store_server
