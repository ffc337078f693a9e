// The key-value store of `srun --mpi=pmi2`: a PMI-2 client of its own, because libpmi2's calls have no deadline
// (docs/decisions/0005-own-pmi2-client.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "base/unique_fd.hpp"
#include "kvs/pmi2_wire.hpp"
#include "kvs/pmi_store.hpp"

namespace ddp::kvs {

/// What the environment says about this task. The server needs the job's name; rank and size are checked against its
/// answer.
struct Pmi2Identity {
  std::string job_id;       ///< PMI_JOBID: "1234.0"
  std::optional<int> rank;  ///< PMI_RANK
  std::optional<int> size;  ///< PMI_SIZE
};

/// Key-value exchange over PMI-2.
///
/// Before each fence a rank publishes its name with the number of the fence at srun's name service. The
/// fence itself does not say who is missing; these names do.
class Pmi2Store final : public PmiStore {
 public:
  /// Takes over @p fd and joins the job. Throws Error: unavailable (not a socket, server too old), conflict (rank or
  /// size of the server and of the environment differ), peer_lost, protocol, timeout.
  Pmi2Store(base::UniqueFd fd, const Pmi2Identity& expected, Deadline deadline);

  /// The same, with PMI_FD, PMI_JOBID, PMI_RANK and PMI_SIZE of @p environment.
  Pmi2Store(const base::Environment& environment, Deadline deadline);

  ~Pmi2Store() override;

  std::string_view transport() const override { return "PMI-2"; }

  void fence(Deadline deadline) override;
  /// As node attributes, which are limited like values and are visible at once. slurmstepd keeps them in a list:
  /// put no more than some hundred.
  void put_on_node(std::string_view key, std::span<const std::byte> value) override {
    put_into(Space::node, key, value);
  }
  Bytes get_on_node(int rank, std::string_view key, Deadline deadline) override {
    return get_from(Space::node, rank, key, deadline);
  }
  void close() noexcept override;

  /// The server's name of the job step: "1234.0".
  const std::string& job_id() const { return job_id_; }

 private:
  PmiMessage request(const PmiMessage& message, std::string_view answer, Deadline deadline);
  PmiMessage await(std::string_view answer, Deadline deadline);
  std::size_t most_text_bytes() const override { return kPmi2MaxValueBytes; }
  void put_text(Space space, const std::string& wire_key, const std::string& text, Deadline deadline) override;
  std::optional<std::string> read_text(Space space, const std::string& wire_key, Deadline deadline) override;
  bool await_fence(Deadline deadline);
  void accept_fence(const PmiMessage& message);
  std::vector<int> find_absent(Deadline deadline, std::size_t& unchecked);
  bool arrived(int rank, Deadline deadline);
  std::optional<std::string> look_up(const std::string& name, Deadline deadline);
  void publish(const std::string& name, const std::string& value, Deadline deadline);
  std::string arrival_name(int rank) const;

  std::optional<Pmi2Channel> channel_;
  std::string job_id_;
  bool fence_answered_ = false;  ///< the answer to the current fence has come
};

}  // namespace ddp::kvs
