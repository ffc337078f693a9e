#include "kvs/memory_store.hpp"

#include <fmt/format.h>

#include "kvs/store_contract.hpp"

namespace ddp::kvs {

void MemoryStore::put(std::string_view key, std::span<const std::byte> value) {
  check_key(key);
  check_usable(usable_, fmt::format("putting '{}' into the memory store", key));
  const std::lock_guard lock(hub_->mutex_);
  hub_->pending_[{rank_, std::string(key)}] = Bytes(value.begin(), value.end());
}

void MemoryStore::fence(Deadline deadline) {
  const std::string attempted = fmt::format("fence of {} ranks in memory", world_size());
  check_usable(usable_, attempted);
  std::unique_lock lock(hub_->mutex_);
  const unsigned generation = hub_->generation_;
  hub_->arrived_.insert(rank_);
  if (static_cast<int>(hub_->arrived_.size()) == hub_->world_size_) {
    hub_->visible_.merge(hub_->pending_);
    hub_->pending_.clear();
    hub_->arrived_.clear();
    ++hub_->generation_;
    hub_->changed_.notify_all();
    return;
  }
  const bool complete =
      hub_->changed_.wait_until(lock, deadline.when(), [&] { return hub_->generation_ != generation; });
  if (complete) return;
  usable_ = false;
  std::vector<int> absent;
  for (int rank = 0; rank < hub_->world_size_; ++rank) {
    if (!hub_->arrived_.contains(rank)) absent.push_back(rank);
  }
  throw fence_timeout(attempted, absent, hub_->world_size_);
}

Bytes MemoryStore::get(int rank, std::string_view key, Deadline /*values are there at once or not at all*/) {
  check_key(key);
  check_rank(rank, world_size());
  const std::string attempted = fmt::format("getting '{}' of rank {} from the memory store", key, rank);
  check_usable(usable_, attempted);
  const std::lock_guard lock(hub_->mutex_);
  const auto found = hub_->visible_.find({rank, std::string(key)});
  if (found == hub_->visible_.end()) throw key_not_found(attempted);
  return found->second;
}

}  // namespace ddp::kvs
