// What a run has learned about the order of its gradients, for the first step of later runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddp {

/// For a Reducer's parameters: Reducer::recorded_order() returns it, ReducerOptions::recorded_order takes it. A value.
struct RecordedOrder {
  std::vector<std::string> parameters{};  ///< "'fc.weight' float32[4, 2]", by index; must match the model
  std::vector<std::size_t> order{};       ///< indices, in the order in which gradients become ready
  std::vector<std::int64_t> counts = {};  ///< by index, for a static graph: marks in each step; else empty

  /// Writes a text file, which replaces an older one completely or not at all. One rank calls it; if ranks mark
  /// different parameters, each writes a file of its own. Throws Error(invalid_argument) for names with line breaks,
  /// Error(system) if the operating system refuses.
  void save(const std::string& path) const;

  /// Throws Error(not_found) if there is no file, Error(system) if it cannot be read, Error(protocol) if it is damaged
  /// or of another version.
  static RecordedOrder load(const std::string& path);

  friend bool operator==(const RecordedOrder&, const RecordedOrder&) = default;
};

}  // namespace ddp
