// The rendezvous of a job: each rank puts small values under its own keys, and after a fence all ranks can get them.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

namespace ddp {

/// Key-value exchange among the ranks of one job, over the launcher's service (PMIx, PMI-2, PMI-1, a c10d TCPStore,
/// or memory). Values may hold any bytes and have any size. A key belongs to the rank that put it: the pair
/// (rank, key) names a value, and no pair may be put twice.
///
/// Thread-safety: calls of one object must come from one thread at a time.
/// Errors: every call throws ddp::Error; a store is unusable after a timeout in fence(), because launchers number
/// their collectives and cannot cancel one (Slurm: "Bad collective seq").
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  virtual int rank() const = 0;        ///< of this process in the job
  virtual int world_size() const = 0;  ///< ranks of the job

  /// "PMIx", "PMI-2", "PMI-1", "c10d TCPStore" or "memory": for messages.
  virtual std::string_view transport() const = 0;

  /// Stores @p value under (rank(), key). Others see it after the next fence. Keys: 1 to 64 bytes of [A-Za-z0-9._-].
  virtual void put(std::string_view key, std::span<const std::byte> value) = 0;

  /// Returns once every rank has called fence() as often as this one, and what they put before is visible.
  /// Throws timeout with the ranks that did not arrive.
  virtual void fence(Deadline deadline) = 0;

  /// The value that @p rank put under @p key before the last fence.
  /// Throws not_found when that rank put no such key, invalid_argument for a rank outside [0, world_size()).
  virtual Bytes get(int rank, std::string_view key, Deadline deadline) = 0;

  /// What get() returns for each rank, by rank, with its errors. For values of some KB: a c10d TCPStore returns many in
  /// one request, where a get() of each rank by each rank would take a round trip per pair.
  virtual std::vector<Bytes> get_all(std::string_view key, Deadline deadline) {
    std::vector<Bytes> values;
    for (int rank = 0; rank < world_size(); ++rank) values.push_back(get(rank, key, deadline));
    return values;
  }

  /// put() for larger values that only ranks of the same node need: they stay on the node if the transport supports
  /// that (PMIx: PMIX_LOCAL; PMI-2: node attributes). A pair (rank, key) is put in one of the two ways, once, and read
  /// in the same way after a fence. Whether another node can read it is unspecified; the call returns by the
  /// deadline.
  virtual void put_on_node(std::string_view key, std::span<const std::byte> value) { put(key, value); }
  /// Reads what put_on_node() has put, like get().
  virtual Bytes get_on_node(int rank, std::string_view key, Deadline deadline) { return get(rank, key, deadline); }

  /// Leaves the service (PMIx_Finalize, PMI-2 finalize, closes the connection). Further calls throw. Idempotent.
  virtual void close() noexcept = 0;
};

}  // namespace ddp
