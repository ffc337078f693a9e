// KeyValueStore over PMIx: Put, Commit, Fence with data collection, Get. Nothing else of PMIx is portable: Slurm's
// server supports neither publish/lookup nor events.
//
// All that a rank puts between two fences travels as one PMIx value, because each further key costs every rank of the
// job about as much again. That value also shows which ranks have reached a fence.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ddp/key_value_store.hpp>

#include "kvs/pmix_session.hpp"

namespace ddp::kvs {

class PmixStore final : public KeyValueStore {
 public:
  /// Collective: every process of the job must make its stores in the same order.
  explicit PmixStore(std::unique_ptr<PmixSession> session);

  int rank() const override { return session_->facts().rank; }
  int world_size() const override { return session_->facts().world_size; }
  std::string_view transport() const override { return "PMIx"; }
  void put(std::string_view key, std::span<const std::byte> value) override;
  void fence(Deadline deadline) override;
  Bytes get(int rank, std::string_view key, Deadline deadline) override;
  void put_on_node(std::string_view key, std::span<const std::byte> value) override;
  Bytes get_on_node(int rank, std::string_view key, Deadline deadline) override;
  void close() noexcept override {
    broken_ = true;
    session_->close();
  }

  const JobFacts& facts() const noexcept { return session_->facts(); }

 private:
  using Batch = std::map<std::string, Bytes, std::less<>>;

  std::vector<int> find_absent(const std::string& attempted, Deadline deadline);
  enum class Where { this_node, any_node };
  Bytes read_value(int rank, const std::string& name, Where where, const std::string& attempted, Deadline deadline);
  const Batch& batch(int rank, unsigned fence, const std::string& attempted, Deadline deadline);

  std::unique_ptr<PmixSession> session_;
  Batch pending_;                                    ///< put since the last fence
  Batch pending_on_node_;                            ///< the same, for ranks of this node
  std::map<std::pair<int, unsigned>, Batch> known_;  ///< by rank and fence: what has been read
  std::vector<unsigned> fences_;                     ///< of this store, by their numbers in the process
  unsigned number_ = 0;                              ///< among the stores of this process
  bool broken_ = false;                              ///< closed, or a fence has failed
};

}  // namespace ddp::kvs
