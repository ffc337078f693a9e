// --ddp-event-log: what happens to a step, from the notes that its nodes leave in the store.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "diagnostics/metrics/event_log.hpp"
#include "task_side/step_notes.hpp"
#include "task_side/step_store.hpp"

namespace ddp::srun_plugin {

/// Of every line, as diagnostics::kEventSchema; these events are the same, but for how a job ends.
inline constexpr const char* kStepEventSchema = "srun-events/1";

struct StepLogOptions {
  std::string path;  ///< empty: no log
  std::chrono::milliseconds interval{60'000};
  std::string program;
  std::string job;   ///< "17"; empty: not known
  std::string step;  ///< "17.0"; empty: not known
};

/// In the store's own process, as its client. Throws as StepStore from every member; constructing also Error(system)
/// where the file cannot be written.
class StepLog {
 public:
  StepLog(std::uint16_t port, const StepLogOptions& options);

  /// Readable when advance() should be called.
  int fd() const { return news_.fd(); }
  void advance();
  /// When collect() should be called; nothing before the first node has spoken.
  const std::optional<Deadline>& due() const { return due_; }
  /// Takes the nodes' reports, and writes a line once all have made one.
  void collect();
  /// The step has ended.
  void end();

 private:
  enum class Expects { step, nodes, ranks, nothing };
  void expect(std::string key);
  std::vector<Bytes> of_all_nodes(std::string (*key)(const std::string&));

  StepStore news_;  ///< waits for one key
  StepStore store_;
  std::chrono::milliseconds interval_;
  std::chrono::steady_clock::time_point start_;
  diagnostics::EventLog log_;
  Expects expects_ = Expects::step;
  StepNote step_;
  std::vector<std::string> nodes_;
  int joined_ = 0;
  std::map<std::size_t, std::uint32_t> last_reports_;  ///< number, by node
  diagnostics::JobProgress progress_;
  std::optional<Deadline> due_;
};

}  // namespace ddp::srun_plugin
