// What compression has left out of gradients so far, to be added to the next ones (error feedback).
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include <ddp/tensor_view.hpp>

#include "reducer/hooks/float_hook.hpp"

namespace ddp::hooks {

/// By parameter, so that it stays when buckets are rebuilt.
class ErrorMemory {
 public:
  /// gradient += error; then the error is 0.
  void add_to(std::size_t parameter, const TensorView& gradient) {
    std::vector<float>& error = of(parameter, gradient.numel());
    const auto values = floats(gradient);
    for (std::size_t i = 0; i < error.size(); ++i) {
      values[i] += error[i];
      error[i] = 0;
    }
  }
  /// @p count elements, to be written.
  std::vector<float>& of(std::size_t parameter, std::size_t count) {
    std::vector<float>& error = errors_[parameter];
    error.resize(count);
    return error;
  }
  void clear() noexcept { errors_.clear(); }

 private:
  std::map<std::size_t, std::vector<float>> errors_;
};

}  // namespace ddp::hooks
