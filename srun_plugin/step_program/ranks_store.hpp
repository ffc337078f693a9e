// The store that MASTER_ADDR and MASTER_PORT name. Programs put further servers of rank 0 at MASTER_ADDR, so that store
// is on rank 0's host: the one beside srun where srun is there, too, else one that rank 0's witness serves. The nodes
// of the step agree on it in the store beside srun.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <ddp/bytes.hpp>

#include "store_server/store_key.hpp"
#include "task_side/step_store.hpp"

namespace ddp::srun_plugin {

struct StorePlace {
  std::string address;     ///< numeric; empty: the store beside srun, at the address by which each node knows it
  std::uint16_t port = 0;  ///< of an address
  friend bool operator==(const StorePlace&, const StorePlace&) = default;
};

Bytes encode(const StorePlace& place);
/// Throws Error(protocol).
StorePlace decode_place(std::span<const std::byte> bytes);

/// Where the nodes find it in the store beside srun.
inline constexpr const char* kPlaceKey = "ddp-step/ranks-store";
/// The step is being ended: nobody shall wait for rank 0's node.
void give_up_place(StepStore& store);

struct RanksStoreOptions {
  std::string srun_address;
  std::uint16_t srun_port = 0;
  store_server::StoreKey key;  ///< of both stores
  std::string node;
  bool has_rank_0 = false;
  /// For how long rank 0's node is waited for; after that the store beside srun is everybody's.
  std::chrono::milliseconds patience{10'000};
};

/// Finds or serves it on a thread of its own, which goes on after destruction.
class RanksStore {
 public:
  /// When this node can use it, one line is written to a copy of @p answer_fd: "store ADDRESS PORT", with " error TEXT"
  /// behind that where this node's ranks will not reach it. Throws Error(system).
  RanksStore(RanksStoreOptions options, int answer_fd);
  /// Returns when it needs this process no longer: the store beside srun has ended, or another process is the witness.
  void wait();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ddp::srun_plugin
