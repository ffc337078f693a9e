// What the clients of PMI-1 and PMI-2 share: values of any bytes in a space of short texts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <ddp/deadline.hpp>
#include <ddp/key_value_store.hpp>

#include "base/env_table.hpp"

namespace ddp::kvs {

/// One per process: a server accepts no second client of a task.
///
/// A value is stored as texts under "ddp<rank>-<hash of the key>-<number>". Put costs a round trip to the node's server
/// (about 25 us) for each. The server broadcasts all values to all nodes in every fence: keep values small.
class PmiStore : public KeyValueStore {
 public:
  PmiStore(const PmiStore&) = delete;
  PmiStore& operator=(const PmiStore&) = delete;
  ~PmiStore() override = default;

  int rank() const final { return rank_; }
  int world_size() const final { return world_size_; }

  /// Besides the contract: invalid_argument when the key was put before; timeout when the server does not accept
  /// the value within kPutTimeout.
  void put(std::string_view key, std::span<const std::byte> value) final { put_into(Space::job, key, value); }
  Bytes get(int rank, std::string_view key, Deadline deadline) final {
    return get_from(Space::job, rank, key, deadline);
  }

  /// PMI_process_mapping, for example "(vector,(0,4,2))"; nothing if the server has none.
  const std::optional<std::string>& process_mapping() const { return process_mapping_; }

  static constexpr std::chrono::seconds kPutTimeout{60};

 protected:
  PmiStore() = default;

  enum class Space { job, node };
  void put_into(Space space, std::string_view key, std::span<const std::byte> value);
  Bytes get_from(Space space, int rank, std::string_view key, Deadline deadline);

  /// What @p finalize throws becomes a line of the log.
  static void log_failures(const std::function<void()>& finalize) noexcept;

  virtual std::size_t most_text_bytes() const = 0;
  virtual void put_text(Space space, const std::string& wire_key, const std::string& text, Deadline deadline) = 0;
  virtual std::optional<std::string> read_text(Space space, const std::string& wire_key, Deadline deadline) = 0;

  bool usable_ = true;  ///< false after a failed fence and after close()
  int rank_ = 0;
  int world_size_ = 0;
  std::optional<std::string> process_mapping_;
  std::uint64_t fences_ = 0;  ///< begun by this rank

 private:
  std::map<std::uint64_t, std::string> put_keys_;  ///< own keys by their hash
};

/// The version of PMI that this process's launcher speaks, by the environment alone: 2 with PMI_FD and PMI_JOBID, which
/// srun --mpi=pmi2 sets; 1 with PMI_FD or PMI_PORT otherwise (Hydra, Flux, Intel MPI); 0 without.
int pmi_version(const base::Environment& environment);

/// Joins the job. Throws as the stores' constructors do.
std::unique_ptr<PmiStore> connect_pmi(int version, const base::Environment& environment, Deadline deadline);

}  // namespace ddp::kvs
