// Serves PyTorch's c10d TCPStore protocol, so that unmodified torch.distributed programs meet without a master process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store_server/listeners.hpp"

namespace ddp::store_server {

struct StoreServerOptions {
  /// Numeric addresses to listen on; several share one port. Empty: all of this host ([::], else 0.0.0.0).
  std::vector<std::string> listen_addresses;
  /// Numeric addresses from which clients may come. Empty: from anywhere; with admission_secret, from none.
  std::vector<std::string> allowed_clients;
  /// 64 hexadecimal digits (see admission request.hpp): the addresses of those who show it are admitted, too. Empty:
  /// none are.
  std::string admission_secret = {};
  /// Loopback is among the addresses from which clients may come.
  bool admit_loopback = true;
  /// 0: one of port_range, and without that one that the kernel chooses.
  std::uint16_t port = 0;
  std::optional<PortRange> port_range = std::nullopt;
  /// How long a client may take to send VALIDATE, or wait for its address to be admitted.
  std::chrono::milliseconds validation_limit = std::chrono::seconds(10);
  /// Connections from addresses that are not admitted, in all; at least 1. One more, and the oldest is closed. Each
  /// holds a descriptor and what the kernel receives for it. Clients of a job that are closed for that (more of them
  /// than this came before the admission requests of their hosts) try again, as current torch does, so that they lose
  /// time only.
  std::size_t most_strangers = 1024;
};

/// Starts with an empty key space and serves from its own thread until it is destroyed. Speaks what torch 2.2 and newer
/// send (torch/csrc/distributed/c10d/TCPStoreBackend.hpp: VALIDATE to BARRIER), with the limits of its libuv server:
/// keys to 8 KiB, values to 8 MiB, 128 Ki keys per request. A client that breaks the protocol or its limits loses its
/// connection and nobody else notices; likewise one that connects and does not validate itself in time, and one that
/// keeps asking while 64 MiB of answers wait to be read.
///
/// With a secret, a client from an address that is not admitted may connect, and is served as soon as the address is
/// admitted. Until then, nothing that it sends is read but the first byte. An admitted address stays so: whoever else
/// uses it, behind a translation of addresses, say, is let in.
class StoreServer {
 public:
  /// Throws Error: system (an address cannot be listened on), invalid_argument (not a numeric address,
  /// no such secret or range); each names it, but not the secret.
  explicit StoreServer(const StoreServerOptions& options);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  std::uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::store_server
