// Serves PyTorch's c10d TCPStore protocol, so that unmodified torch.distributed programs need no master process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store_server/peer_address.hpp"
#include "store_server/store_key.hpp"
#include "stream/listening.hpp"

namespace ddp::store_server {

struct StoreServerOptions {
  /// Numeric addresses to listen on; several share one port. Empty: all of this host ([::], else 0.0.0.0).
  std::vector<std::string> listen_addresses = {};
  /// Of the witnesses of other hosts. Empty: only this host is served.
  std::optional<StoreKey> key = std::nullopt;
  /// 0: one of port_range, else one that the kernel chooses.
  std::uint16_t port = 0;
  std::optional<stream::PortRange> port_range = std::nullopt;
  /// Time for a client to send VALIDATE, and for its host's witness to answer.
  std::chrono::milliseconds validation_limit = std::chrono::seconds(10);
  /// For a connection's first byte: clients and witnesses speak at once.
  std::chrono::milliseconds silence_limit = std::chrono::seconds(5);
  /// Most connections from other hosts of which it is not known whose they are, at least 1; beyond that the oldest of
  /// the source that has the most is closed. Each holds a descriptor and the kernel's receive buffer.
  std::size_t max_unadmitted = 1024;
  StoreLimits limits = {};
  /// Whether an address is this host's. Empty: its interfaces tell. For tests.
  std::function<bool(const PeerAddress&)> is_own_host = {};
};

/// Starts with an empty key space and serves from its own thread until it is destroyed. Speaks what torch 2.2 and newer
/// send (torch/csrc/distributed/c10d/TCPStoreBackend.hpp: VALIDATE to BARRIER), with the limits of its libuv server:
/// keys to 8 KiB, values to 8 MiB, 128 Ki keys per request; and StoreLimits. A client that breaks the protocol or a
/// limit, or does not send VALIDATE in time, loses its connection, without effect on others.
///
/// Only the user of this process is served. Whose a connection from this host is, the kernel says (SocketOwners); whose
/// one from another host is, that host's Witness says, which has proven the key. Who is neither is refused before one
/// of its bytes is acted on; so is who has closed the connection by then (a socket's owner goes with it), which no
/// PyTorch client does.
class StoreServer {
 public:
  /// Throws Error: system (cannot listen), invalid_argument (address not numeric, range malformed).
  explicit StoreServer(const StoreServerOptions& options);
  StoreServer& operator=(StoreServer&&) = delete;
  ~StoreServer();

  std::uint16_t port() const;

  /// Lines for the user: whom the store has refused or closed, and why; few, however many there are. Any thread may
  /// take them; the descriptor is readable while there are some.
  int refusals_fd() const;
  std::vector<std::string> take_refusals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::store_server
