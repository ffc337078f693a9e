// Who averages a parameter's gradients: several wrappers of a module may be alive, as before the old one goes.
#pragma once

#include <map>
#include <mutex>

#include <ATen/ATen.h>

namespace ddp::torch {

/// Thread-safe. @tparam User its calls of any() must not come back here
template <class User>
class TensorUsers {
 public:
  /// Of the process.
  static TensorUsers& instance() {
    static TensorUsers users;
    return users;
  }

  void add(const at::Tensor& tensor, const User* user) {
    const std::lock_guard lock(mutex_);
    users_.emplace(tensor.unsafeGetTensorImpl(), user);
  }
  void remove(const at::Tensor& tensor, const User* user) {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = users_.equal_range(tensor.unsafeGetTensorImpl());
    for (auto each = first; each != last; ++each) {
      if (each->second != user) continue;
      users_.erase(each);
      return;
    }
  }
  /// Whether @p holds is true of one of them.
  template <class Holds>
  bool any(const at::Tensor& tensor, const Holds& holds) {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = users_.equal_range(tensor.unsafeGetTensorImpl());
    for (auto each = first; each != last; ++each) {
      if (holds(*each->second)) return true;
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::multimap<const void*, const User*> users_;
};

}  // namespace ddp::torch
