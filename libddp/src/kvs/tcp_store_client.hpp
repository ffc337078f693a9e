// The key-value store of a job that torchrun (or ddprun) started: a client of the TCPStore that its agent serves.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/key_value_store.hpp>

#include "base/unique_fd.hpp"

namespace ddp::kvs {

/// Speaks the wire protocol of PyTorch's c10d TCPStore (2.2 and newer;
/// torch/csrc/distributed/c10d/TCPStoreBackend.hpp): a byte for the operation, integers in host order, texts with a
/// 64-bit length.
///
/// A value is the store's entry "<prefix>/<rank>/<key>", so that a Python program can read it. Values above 4 MiB are
/// cut into "<...>#0", "<...>#1" and so on, because the server takes at most 8 MiB; "<...>#parts" is their number. A
/// store outlives the restart of its workers: the prefix must differ in every attempt.
class TcpStoreClient final : public KeyValueStore {
 public:
  /// Connects to MASTER_ADDR:MASTER_PORT. Retries a refused connection for kConnectPatience.
  /// Throws Error: unavailable (no listener), invalid_argument (unknown host), protocol (no TCPStore), timeout.
  TcpStoreClient(const std::string& host, std::uint16_t port, int rank, int world_size, std::string key_prefix,
                 Deadline deadline);

  /// The same over a connected, non-blocking socket. @param server names it in messages.
  TcpStoreClient(base::UniqueFd socket, std::string server, int rank, int world_size, std::string key_prefix,
                 Deadline deadline);

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string_view transport() const override { return "c10d TCPStore"; }

  /// Besides the contract: timeout when the server does not accept the value within kPutTimeout.
  void put(std::string_view key, std::span<const std::byte> value) override;
  void fence(Deadline deadline) override;
  Bytes get(int rank, std::string_view key, Deadline deadline) override;
  /// Two requests for each kPageRanks ranks.
  std::vector<Bytes> get_all(std::string_view key, Deadline deadline) override;
  void close() noexcept override;

  static constexpr std::chrono::seconds kPutTimeout{60};
  static constexpr std::chrono::seconds kConnectPatience{3};
  static constexpr int kPageRanks = 64;

 private:
  void join(Deadline deadline);
  void set(const std::string& key, std::span<const std::byte> value, Deadline deadline);
  Bytes fetch(const std::string& key, Deadline deadline);
  Bytes receive_value(const std::string& key, Deadline deadline);
  std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline);
  bool exists(const std::string& key, Deadline deadline);
  bool all_exist(std::span<const std::string> keys, Deadline deadline);
  bool wait_until_exists(const std::string& key, Deadline deadline, Deadline cancel_deadline);
  std::vector<int> find_absent(std::uint64_t fence, Deadline deadline);

  void send(const Bytes& message, Deadline deadline);
  template <class Int>
  Int receive(Deadline deadline);
  std::string describe(std::string_view operation) const;
  std::string value_key(int rank, std::string_view key) const;
  std::string fence_key(std::uint64_t fence, std::string_view part) const;

  base::UniqueFd socket_;
  std::string server_;
  int rank_;
  int world_size_;
  std::string prefix_;
  std::uint64_t fences_ = 0;
  bool usable_ = true;  ///< false after close() and once an answer is overdue, since it could pass for a later one
};

}  // namespace ddp::kvs
