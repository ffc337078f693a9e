#include "step_program/step_log.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "base/process.hpp"
#include "step_program/node_report.hpp"
#include "step_program/step_watch.hpp"
#include "topology/network/hostlist.hpp"

namespace ddp::srun_plugin {
namespace {

using StepJson = nlohmann::ordered_json;

constexpr const char* kLogsHost = "127.0.0.1";

StepJson failure_json(const RankEnd& failure) {
  const std::chrono::system_clock::time_point when{std::chrono::milliseconds{failure.when_ms}};
  const bool by_signal = WIFSIGNALED(failure.status);
  const int signal = WTERMSIG(failure.status);
  return {{"rank", failure.rank},
          {"host", failure.node},
          {"time", diagnostics::time_text(when)},
          {"exit_code", by_signal ? StepJson(nullptr) : StepJson(WEXITSTATUS(failure.status))},
          {"signal", by_signal ? StepJson{{"number", signal}, {"name", base::signal_name(signal)}} : StepJson(nullptr)},
          {"core_dumped", by_signal && WCOREDUMP(failure.status)}};
}

}  // namespace

StepLog::StepLog(std::uint16_t port, const StepLogOptions& options)
    : news_(kLogsHost, port),
      store_(kLogsHost, port),
      interval_(options.interval),
      start_(std::chrono::steady_clock::now()),
      log_("--ddp-event-log", options.path,
           {.schema = kStepEventSchema,
            .run_id = options.step.empty() ? "none" : options.step,
            .slurm_job_id = options.job,
            .program = options.program,
            .max_restarts = 0},
           [](const std::string& text) { base::write_stderr_line("srun: ddp: warning: " + text); }) {
  expect(kStepKey);
}

void StepLog::expect(std::string key) { news_.ask_wait({std::move(key)}); }

std::vector<Bytes> StepLog::of_all_nodes(std::string (*key)(const std::string&)) {
  std::vector<std::string> keys;
  for (const std::string& node : nodes_) keys.push_back(key(node));
  return store_.get(keys);
}

void StepLog::advance() {
  news_.take_wait();
  const auto missing = [](const std::vector<Bytes>& notes) {
    return std::find(notes.begin(), notes.end(), Bytes{}) - notes.begin();
  };
  const auto of_a_node = [this](std::ptrdiff_t index) { return static_cast<std::size_t>(index) < nodes_.size(); };
  if (expects_ == Expects::step) {
    step_ = decode_step_note(store_.get({kStepKey}).front());
    nodes_ = topology::expand_hostlist(step_.node_list);
    std::sort(nodes_.begin(), nodes_.end());  // components of a heterogeneous step may share a node
    nodes_.erase(std::unique(nodes_.begin(), nodes_.end()), nodes_.end());
    due_ = Deadline::after(interval_);
    expects_ = Expects::nodes;
  }
  if (expects_ == Expects::nodes) {
    const std::vector<Bytes> present = of_all_nodes(&presence_key);
    const auto joined =
        static_cast<int>(nodes_.size()) - static_cast<int>(std::count(present.begin(), present.end(), Bytes{}));
    if (joined > joined_) log_.node_joined(joined, static_cast<int>(nodes_.size()));
    joined_ = joined;
    if (const auto next = missing(present); of_a_node(next))
      return expect(presence_key(nodes_[static_cast<std::size_t>(next)]));
    expects_ = Expects::ranks;
  }
  if (const auto next = missing(of_all_nodes(&report_key)); of_a_node(next))
    return expect(report_key(nodes_[static_cast<std::size_t>(next)]));
  log_.attempt_started(0, static_cast<int>(step_.world_size), static_cast<int>(nodes_.size()));
  expects_ = Expects::nothing;
}

void StepLog::collect() {
  due_ = Deadline::after(interval_);
  const std::vector<Bytes> reports = of_all_nodes(&report_key);
  for (std::size_t node = 0; node < reports.size(); ++node) {
    if (reports[node].empty()) continue;
    const NodeReport report = decode_report(reports[node]);
    if (report.ranks.empty() || std::exchange(last_reports_[node], report.number) == report.number) continue;
    const auto facts = progress_.add(static_cast<int>(node), nodes_.size(), 0, report.ranks);
    if (facts) log_.progress(0, *facts);
  }
}

void StepLog::end() {
  const std::vector<Bytes> notes = store_.get({kStepKey, kFailureKey});
  StepJson failures = StepJson::array();
  StepJson success = nullptr, exit_status = nullptr, root_cause = nullptr;
  std::vector<std::string> silent;
  std::size_t ended_with_0 = 0;
  if (!notes[0].empty()) {
    const StepNote step = decode_step_note(notes[0]);
    silent = silent_nodes(store_, step);
    ended_with_0 = ends_with_0(store_, step).size();
    if (ended_with_0 == step.world_size) success = true, exit_status = 0;
  }
  if (!notes[1].empty()) {
    const RankEnd failure = decode_rank_end(notes[1]);
    failures.push_back(failure_json(failure));
    root_cause = {{"kind", "rank"}, {"rank", failure.rank}, {"host", failure.node}};
    success = false;
    exit_status = WIFSIGNALED(failure.status) ? 128 + WTERMSIG(failure.status) : WEXITSTATUS(failure.status);
  }
  const auto total = std::chrono::steady_clock::now() - start_;
  const StepJson fields = {{"attempt", 0},
                           {"restarts_used", 0},
                           {"success", success},
                           {"exit_status", exit_status},
                           {"root_cause", root_cause},
                           {"seconds_total", std::chrono::duration<double>(total).count()},
                           {"failures", failures},
                           {"ended_with_0", ended_with_0},
                           {"silent_nodes", silent}};
  log_.write("job_ended", fields.dump(-1, ' ', false, StepJson::error_handler_t::replace));
}

}  // namespace ddp::srun_plugin
