// The key-value store of Hydra (MPICH's and Intel MPI's mpiexec) and Flux: a PMI-1 client of its own, because their
// libpmi's calls have no deadline (docs/decisions/0151-own-pmi1-client.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "base/unique_fd.hpp"
#include "kvs/pmi1_wire.hpp"
#include "kvs/pmi_store.hpp"

namespace ddp::kvs {

/// What the environment says about this task: PMI-1 itself tells it only over PMI_PORT.
struct Pmi1Identity {
  std::optional<int> rank;     ///< PMI_RANK
  std::optional<int> size;     ///< PMI_SIZE
  std::optional<int> port_id;  ///< PMI_ID: the connection is one to PMI_PORT
};

/// Key-value exchange over PMI-1. A barrier does not say who is missing, and nothing else of the protocol does.
class Pmi1Store final : public PmiStore {
 public:
  /// Takes over @p fd and joins the job. Throws Error: unavailable (not a socket, server too old), conflict (rank or
  /// size of the server and of the environment differ), invalid_argument (rank or size unknown), peer_lost, protocol,
  /// timeout.
  Pmi1Store(base::UniqueFd fd, const Pmi1Identity& identity, Deadline deadline);

  /// By PMI_FD, or PMI_PORT.
  Pmi1Store(const base::Environment& environment, Deadline deadline);

  ~Pmi1Store() override;

  std::string_view transport() const override { return "PMI-1"; }
  void fence(Deadline deadline) override;
  void close() noexcept override;

 private:
  void join(const Pmi1Identity& identity, Deadline deadline);
  void introduce(int id, Deadline deadline);
  PmiMessage request(const PmiMessage& message, std::string_view answer, Deadline deadline);
  std::optional<PmiMessage> receive(Deadline deadline);
  PmiMessage await(const std::string& command, std::string_view answer, Deadline deadline);

  std::size_t most_text_bytes() const override { return text_bytes_; }
  void put_text(Space space, const std::string& wire_key, const std::string& text, Deadline deadline) override;
  std::optional<std::string> read_text(Space space, const std::string& wire_key, Deadline deadline) override;

  std::optional<PmiChannel> channel_;
  std::string kvs_name_;
  std::size_t text_bytes_ = 0;
  bool in_barrier_ = false;  ///< its end has not come
};

}  // namespace ddp::kvs
