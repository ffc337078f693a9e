// What no_sync() and several_backwards() return.
#pragma once

#include <memory>
#include <utility>

namespace ddp::torch {

/// Counts in a member of its owner, which it keeps, as long as it lives.
template <class Owner>
class [[nodiscard]] CountingGuard {
 public:
  CountingGuard(std::shared_ptr<Owner> owner, int Owner::*depth) : owner_(std::move(owner)), depth_(depth) {
    ++((*owner_).*depth_);
  }
  CountingGuard(CountingGuard&&) noexcept = default;
  CountingGuard(const CountingGuard&) = delete;
  CountingGuard& operator=(const CountingGuard&) = delete;
  ~CountingGuard() {
    if (owner_) --((*owner_).*depth_);
  }

 private:
  std::shared_ptr<Owner> owner_;
  int Owner::*depth_;
};

}  // namespace ddp::torch
