// Serves PyTorch's c10d TCPStore protocol, so that unmodified torch.distributed programs need no master process.
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
  /// Numeric addresses of clients. Empty: any; with admission_secret, none.
  std::vector<std::string> allowed_clients;
  /// 64 hexadecimal digits (see admission_request.hpp): addresses that show it are admitted, too. Empty: none are.
  std::string admission_secret = {};
  /// Clients may come from loopback.
  bool admit_loopback = true;
  /// 0: one of port_range, else one that the kernel chooses.
  std::uint16_t port = 0;
  std::optional<PortRange> port_range = std::nullopt;
  /// Time for a client to send VALIDATE, or for its address to be admitted.
  std::chrono::milliseconds validation_limit = std::chrono::seconds(10);
  /// Most connections from addresses that are not admitted, at least 1; beyond that the oldest is closed. Each holds a
  /// descriptor and the kernel's receive buffer. Clients of the job that are closed (more than this connected before
  /// their hosts were admitted) connect again, as current torch does, and lose time only.
  std::size_t max_unadmitted = 1024;
};

/// Starts with an empty key space and serves from its own thread until it is destroyed. Speaks what torch 2.2 and newer
/// send (torch/csrc/distributed/c10d/TCPStoreBackend.hpp: VALIDATE to BARRIER), with the limits of its libuv server:
/// keys to 8 KiB, values to 8 MiB, 128 Ki keys per request. A client that breaks the protocol or its limits, does not
/// send VALIDATE in time, or sends requests while 64 MiB of answers are unread loses its connection, without effect on
/// others.
///
/// With a secret, a client from an address that is not admitted is held, and served once the address is admitted. Until
/// then only its first byte is read. Admission is by address and lasts: others behind the same NAT are admitted, too.
class StoreServer {
 public:
  /// Throws Error: system (cannot listen), invalid_argument (address not numeric, secret or range
  /// malformed); each names the value, except for the secret.
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
