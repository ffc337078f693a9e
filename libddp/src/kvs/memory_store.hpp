// KeyValueStore for ranks that are threads of one process, or for a process alone. Needs no launcher.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include <ddp/key_value_store.hpp>

namespace ddp::kvs {

/// What the stores of one job share. Thread-safe.
class MemoryHub {
 public:
  explicit MemoryHub(int world_size) : world_size_(world_size) {}

 private:
  friend class MemoryStore;
  const int world_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, std::string>, Bytes> visible_;
  std::map<std::pair<int, std::string>, Bytes> pending_;  ///< put, but not fenced
  std::set<int> arrived_;                                 ///< ranks in the current fence
  unsigned generation_ = 0;                               ///< finished fences
};

class MemoryStore final : public KeyValueStore {
 public:
  MemoryStore(std::shared_ptr<MemoryHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return hub_->world_size_; }
  std::string_view transport() const override { return "memory"; }
  void put(std::string_view key, std::span<const std::byte> value) override;
  void fence(Deadline deadline) override;
  Bytes get(int rank, std::string_view key, Deadline deadline) override;
  void close() noexcept override { usable_ = false; }

 private:
  std::shared_ptr<MemoryHub> hub_;
  int rank_;
  bool usable_ = true;
};

}  // namespace ddp::kvs
