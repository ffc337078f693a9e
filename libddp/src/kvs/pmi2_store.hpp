// The key-value store of `srun --mpi=pmi2`: a PMI-2 client of its own, because libpmi2's calls have no deadline
// (docs/decisions/0005-own-pmi2-client.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/key_value_store.hpp>

#include "base/unique_fd.hpp"
#include "kvs/pmi2_wire.hpp"

namespace ddp::kvs {

/// What the environment says about this task. The server needs the job's name; rank and size are checked against its
/// answer.
struct Pmi2Identity {
  std::string job_id;       ///< PMI_JOBID: "1234.0"
  std::optional<int> rank;  ///< PMI_RANK
  std::optional<int> size;  ///< PMI_SIZE
};

/// Key-value exchange over PMI-2. One per process: the server accepts no second client of a task.
///
/// A value is stored as texts of at most 1023 bytes under "ddp<rank>-<hash of the key>-<number>". Put costs a round
/// trip to the node's slurmstepd (about 25 us) for each 767 bytes. The server broadcasts all values to all nodes in
/// every fence: keep values small.
///
/// Before each fence a rank publishes its name with the number of the fence at srun's name service. The
/// fence itself does not say who is missing; these names do.
class Pmi2Store final : public KeyValueStore {
 public:
  /// Takes over @p fd and joins the job. Throws Error: unavailable (not a socket, server too old), conflict (rank or
  /// size of the server and of the environment differ), peer_lost, protocol, timeout.
  Pmi2Store(base::UniqueFd fd, const Pmi2Identity& expected, Deadline deadline);

  /// The same, with PMI_JOBID, PMI_RANK and PMI_SIZE of this process. @param fd PMI_FD.
  Pmi2Store(int fd, Deadline deadline);

  Pmi2Store(const Pmi2Store&) = delete;
  Pmi2Store& operator=(const Pmi2Store&) = delete;
  ~Pmi2Store() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string_view transport() const override { return "PMI-2"; }

  /// Besides the contract: invalid_argument when the key was put before; timeout when the server does not accept
  /// the value within kPutTimeout.
  void put(std::string_view key, std::span<const std::byte> value) override;
  void fence(Deadline deadline) override;
  Bytes get(int rank, std::string_view key, Deadline deadline) override;
  /// As node attributes, which are limited like values and are visible at once. slurmstepd keeps them in a list:
  /// put no more than some hundred.
  void put_on_node(std::string_view key, std::span<const std::byte> value) override;
  Bytes get_on_node(int rank, std::string_view key, Deadline deadline) override;
  void close() noexcept override;

  /// The job attribute PMI_process_mapping, for example "(vector,(0,4,2))"; nothing if the server has none.
  const std::optional<std::string>& process_mapping() const { return process_mapping_; }
  /// The server's name of the job step: "1234.0".
  const std::string& job_id() const { return job_id_; }

  static constexpr std::chrono::seconds kPutTimeout{60};

 private:
  Pmi2Message request(const Pmi2Message& message, std::string_view answer, Deadline deadline);
  Pmi2Message await(std::string_view answer, Deadline deadline);
  /// Where values are kept: in the space of the job, or of the node.
  struct Space;
  static const Space kJobSpace;
  static const Space kNodeSpace;
  void put_into(const Space& space, std::string_view key, std::span<const std::byte> value);
  Bytes get_from(const Space& space, int rank, std::string_view key, Deadline deadline);
  std::optional<std::string> read_text(const Space& space, const std::string& wire_key, Deadline deadline);
  bool await_fence(Deadline deadline);
  void accept_fence(const Pmi2Message& message);
  std::vector<int> find_absent(Deadline deadline, std::size_t& unchecked);
  bool arrived(int rank, Deadline deadline);
  std::optional<std::string> look_up(const std::string& name, Deadline deadline);
  void publish(const std::string& name, const std::string& value, Deadline deadline);
  std::string arrival_name(int rank) const;

  std::optional<Pmi2Channel> channel_;
  bool usable_ = true;  ///< false after a failed fence and after close()
  int rank_ = 0;
  int world_size_ = 0;
  std::string job_id_;
  std::optional<std::string> process_mapping_;
  std::uint64_t fences_ = 0;                       ///< fences begun by this rank
  bool fence_answered_ = false;                    ///< the answer to the current fence has come
  std::map<std::uint64_t, std::string> put_keys_;  ///< own keys by their hash
};

}  // namespace ddp::kvs
