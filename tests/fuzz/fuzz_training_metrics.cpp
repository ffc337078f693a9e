// What a rank's program says of its own times: whatever the bytes, few series with names that a page can show.
#include "diagnostics/metrics/training_metrics.hpp"
#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::diagnostics;
  const TrainingMetrics metrics = parse_training_metrics({reinterpret_cast<const char*>(data), size});
  if (metrics.series.size() > kMostTrainingSeries) std::abort();
  for (const TrainingSeries& series : metrics.series) {
    if (series.name.find('\n') != std::string_view::npos || series.name.empty() || series.name.size() > 128)
      std::abort();
    if (!(series.sum_s >= 0)) std::abort();
  }
  return 0;
}
