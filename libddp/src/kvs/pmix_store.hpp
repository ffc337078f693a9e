// KeyValueStore over PMIx: Put, Commit, Fence with data collection, Get. Nothing else of PMIx is portable: Slurm's
// server supports neither publish/lookup nor events.
#pragma once

#include <memory>

#include <ddp/key_value_store.hpp>

#include "kvs/pmix_session.hpp"

namespace ddp::kvs {

class PmixStore final : public KeyValueStore {
 public:
  explicit PmixStore(std::unique_ptr<PmixSession> session) : session_(std::move(session)) {}

  int rank() const override { return session_->facts().rank; }
  int world_size() const override { return session_->facts().world_size; }
  std::string_view transport() const override { return "PMIx"; }
  void put(std::string_view key, std::span<const std::byte> value) override;
  void fence(Deadline deadline) override;
  Bytes get(int rank, std::string_view key, Deadline deadline) override;
  void close() noexcept override { session_->close(); }

  const JobFacts& facts() const noexcept { return session_->facts(); }

 private:
  std::vector<int> find_absent(Deadline deadline);

  std::unique_ptr<PmixSession> session_;
  unsigned fences_ = 0;
  bool broken_ = false;
};

}  // namespace ddp::kvs
