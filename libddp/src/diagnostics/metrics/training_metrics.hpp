// What a rank's program itself measures (libddp.PrometheusWriter): sealed memory of its process, which the node's
// agent reads from outside.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::diagnostics {

inline constexpr const char* kTrainingMemoryName = "ddp-training-metrics";
// The rank is another program: what it says takes no more than this of the page. _writers.py has both.
inline constexpr std::size_t kMostTrainingBytes = 65'536;
inline constexpr std::size_t kMostTrainingSeries = 100;

/// Times of one part of a rank's steps.
struct TrainingSeries {
  static constexpr std::array<std::string_view, 3> kQuantiles{"0.5", "0.95", "0.99"};

  std::string type{}, name{};  ///< printable ASCII, at most 128 letters; together unlike any other of the rank
  std::uint64_t count = 0;
  double sum_s = 0;
  std::array<double, 3> quantiles_s{};
};

struct TrainingMetrics {
  std::vector<TrainingSeries> series{};
  int refused = 0;  ///< malformed, a second time or beyond kMostTrainingSeries; 1 for a text that is malformed itself
};

/// @param text {"series": [[type, name, count, sum, p50, p95, p99], ...]}. Never throws for what is in it.
TrainingMetrics parse_training_metrics(std::string_view text);

/// Finds the memory of one of a rank's processes and reads it again and again. Its writer replaces it by another one
/// at the same descriptor, so that each is complete. Not thread-safe.
class TrainingReader {
 public:
  /// Nothing where no process has such memory. @param proc "/proc". @param processes the rank's, itself first.
  TrainingMetrics read(const std::string& proc, const std::vector<pid_t>& processes);

 private:
  std::string path_;                                           ///< where it was; empty: not found yet
  pid_t pid_ = 0;                                              ///< in which process
  Deadline search_ = Deadline{Deadline::Clock::time_point{}};  ///< before which it is not looked for
  std::chrono::seconds pause_{1};                              ///< to the next search that follows one in vain
};

}  // namespace ddp::diagnostics
