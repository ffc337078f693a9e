#include "report/event_log.hpp"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include <ddp/version.hpp>

#include "base/system_error.hpp"
#include "base/whole_file.hpp"
#include "report/outcome_json.hpp"
#include "report/seconds.hpp"

namespace ddp::launcher {

struct EventLog::Fields {
  Json json;
};

EventLog::EventLog(const std::string& path, Job job, std::function<void(const std::string&)> note)
    : path_(path),
      job_(std::move(job)),
      note_(std::move(note)),
      // a pipe without a reader is an error at once, one whose reader is slow loses the rest
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666)) {
  if (!file_)
    throw base::system_error(fmt::format("opening --event-log={}", path), errno, "give a file that you may write to");
  write("job_started",
        {{{"program", job_.program}, {"max_restarts", job_.max_restarts}, {"libddp", DDP_VERSION_STRING}}});
}

void EventLog::node_joined(int joined, int wanted) { write("node_joined", {{{"joined", joined}, {"wanted", wanted}}}); }

void EventLog::attempt_started(int attempt, int world_size, int num_nodes) {
  write("attempt_started", {{{"attempt", attempt}, {"world_size", world_size}, {"num_nodes", num_nodes}}});
}

void EventLog::progress(int attempt, const ProgressFacts& facts) {
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  write("progress", {{{"attempt", attempt},
                      {"ranks", facts.ranks},
                      {"steps", {{"least", facts.least_steps}, {"most", facts.most_steps}}},
                      {"step_seconds", {{"mean", number(facts.step_s)}, {"slowest_rank", number(facts.slowest_s)}}},
                      {"hidden_communication", number(facts.hidden)},
                      {"straggler", facts.straggler_rank ? Json{{"rank", *facts.straggler_rank},
                                                                {"delay_seconds", facts.straggler_delay_s}}
                                                         : Json(nullptr)}}});
}

void EventLog::restart(const JobOutcome& outcome, int attempt, int restart) {
  Json json = {{"attempt", attempt}, {"restart", restart}, {"root_cause", root_cause_json(outcome)}};
  json.update(outcome_json(outcome));
  write("restart", {std::move(json)});
}

void EventLog::job_ended(const JobOutcome& outcome, int attempt, int restarts_used, std::chrono::milliseconds total) {
  Json json = {{"attempt", attempt},
               {"restarts_used", restarts_used},
               {"success", outcome.success()},
               {"exit_status", outcome.exit_status()},
               {"root_cause", root_cause_json(outcome)},
               {"seconds_total", seconds(total)}};
  json.update(outcome_json(outcome));
  write("job_ended", {std::move(json)});
}

void EventLog::write(std::string_view event, Fields&& fields) {
  if (!file_) return;
  Json line = {{"schema", kEventSchema},
               {"time", time_text(std::chrono::system_clock::now())},
               {"event", event},
               {"run_id", job_.run_id},
               {"slurm_job_id", job_.slurm_job_id.empty() ? Json(nullptr) : Json(job_.slurm_job_id)}};
  line.update(fields.json);
  const int error = base::write_all(file_.get(), line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  if (error == 0) return;
  file_.reset();
  note_(fmt::format("writing --event-log={}: {}; it has no more events of this job", path_, base::errno_text(error)));
}

}  // namespace ddp::launcher
