// c10d's Store as a key-value store of libddp, so that ranks which torch.distributed has brought together make a group.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <ddp/error.hpp>
#include <ddp/key_value_store.hpp>

namespace ddp::torch {

/// Of any kind. Needs a prefix of its own (c10d::PrefixStore). A fence that fails names the ranks that are absent.
class C10dStore final : public KeyValueStore {
 public:
  C10dStore(c10::intrusive_ptr<::c10d::Store> store, int rank, int world_size)
      : store_(std::move(store)), rank_(rank), world_size_(world_size) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string_view transport() const override { return "c10d store"; }

  void put(std::string_view key, std::span<const std::byte> value) override {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(value.data());
    store_->set(name(rank_, key), std::vector<std::uint8_t>(bytes, bytes + value.size()));
  }

  void fence(Deadline deadline) override {
    const std::string fence = "fence/" + std::to_string(++fences_) + "/";
    store_->set(fence + std::to_string(rank_), std::vector<std::uint8_t>{1});
    if (store_->add(fence + "arrived", 1) == world_size_) {
      store_->set(fence + "done", std::vector<std::uint8_t>{1});
      return;
    }
    try {
      store_->wait({fence + "done"}, milliseconds_until(deadline));
    } catch (const std::exception& problem) {
      std::vector<int> absent;
      for (int rank = 0; rank < world_size_; ++rank) {
        if (!store_->check({fence + std::to_string(rank)})) absent.push_back(rank);
      }
      if (absent.empty()) return;
      throw Error{
          {.code = ErrorCode::timeout,
           .attempted = "meeting over torch.distributed's store",
           .cause = std::to_string(absent.size()) + " of " + std::to_string(world_size_) +
                    " ranks did not come in time: " + first_line(problem.what()),
           .ranks = std::move(absent),
           .hint = "all ranks of a group make it; timeout= of init_process_group and new_group gives them more"}};
    }
  }

  Bytes get(int rank, std::string_view key, Deadline /*values are there at once or not at all*/) override {
    const std::string full = name(rank, key);
    if (!store_->check({full})) {
      throw Error{{.code = ErrorCode::not_found,
                   .attempted = "getting '" + full + "' from torch.distributed's store",
                   .cause = "the rank has put no such key",
                   .ranks = {rank}}};
    }
    const std::vector<std::uint8_t> value = store_->get(full);
    const auto* const bytes = reinterpret_cast<const std::byte*>(value.data());
    return {bytes, bytes + value.size()};
  }

  void close() noexcept override {}

 private:
  static std::string name(int rank, std::string_view key) { return std::to_string(rank) + "/" + std::string(key); }
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }
  static std::chrono::milliseconds milliseconds_until(Deadline deadline) {
    // 0 would be no limit
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()), std::chrono::milliseconds{1});
  }

  const c10::intrusive_ptr<::c10d::Store> store_;
  const int rank_;
  const int world_size_;
  unsigned fences_ = 0;
};

}  // namespace ddp::torch
