// Serves PyTorch's c10d TCPStore protocol, so that unmodified torch.distributed programs meet without a master process.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ddp::launcher::store_server {

struct StoreServerOptions {
  /// Numeric addresses to listen on; several share one port. Empty: all of this host ([::], else 0.0.0.0).
  std::vector<std::string> listen_addresses;
  /// Numeric addresses from which clients may come. Loopback is always among them. Empty: from anywhere.
  std::vector<std::string> allowed_clients;
  /// 0: the kernel chooses.
  std::uint16_t port = 0;
  /// How long a client may take to send VALIDATE.
  std::chrono::milliseconds validation_limit = std::chrono::seconds(10);
};

/// Starts with an empty key space and serves from its own thread until it is destroyed. Speaks what torch 2.2 and newer
/// send (torch/csrc/distributed/c10d/TCPStoreBackend.hpp: VALIDATE to BARRIER), with the limits of its libuv server:
/// keys to 8 KiB, values to 8 MiB, 128 Ki keys per request. A client that breaks the protocol or its limits loses its
/// connection and nobody else notices; likewise one that connects and does not validate itself in time, and one that
/// keeps asking while 64 MiB of answers wait to be read.
class StoreServer {
 public:
  /// Throws Error: system (an address cannot be listened on), invalid_argument (not a numeric address); each names it.
  explicit StoreServer(const StoreServerOptions& options);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  std::uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::launcher::store_server
