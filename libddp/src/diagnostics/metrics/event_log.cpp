#include "diagnostics/metrics/event_log.hpp"

#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/version.hpp>

#include "base/errors.hpp"
#include "base/files.hpp"

namespace ddp::diagnostics {
namespace {

using EventJson = nlohmann::ordered_json;

std::string event_text(const EventJson& json) { return json.dump(-1, ' ', false, EventJson::error_handler_t::replace); }

}  // namespace

std::string time_text(std::chrono::system_clock::time_point time) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  const auto milliseconds = std::chrono::floor<std::chrono::milliseconds>(time - whole).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(whole)),
                     milliseconds);
}

EventLog::EventLog(std::string_view option, const std::string& path, Job job,
                   std::function<void(const std::string&)> note)
    : what_(fmt::format("{}={}", option, path)),
      job_(std::move(job)),
      note_(std::move(note)),
      // a pipe without a reader is an error at once, one whose reader is slow loses the rest
      file_(base::open_to_append("opening " + what_, path)) {
  write("job_started",
        event_text({{"program", job_.program}, {"max_restarts", job_.max_restarts}, {"libddp", DDP_VERSION_STRING}}));
}

void EventLog::node_joined(int joined, int wanted) {
  write("node_joined", event_text({{"joined", joined}, {"wanted", wanted}}));
}

void EventLog::attempt_started(int attempt, int world_size, int num_nodes) {
  write("attempt_started", event_text({{"attempt", attempt}, {"world_size", world_size}, {"num_nodes", num_nodes}}));
}

void EventLog::progress(int attempt, const ProgressFacts& facts) {
  const auto number = [](const std::optional<double>& value) { return value ? EventJson(*value) : EventJson(nullptr); };
  write("progress",
        event_text({{"attempt", attempt},
                    {"ranks", facts.ranks},
                    {"steps", {{"least", facts.least_steps}, {"most", facts.most_steps}}},
                    {"step_seconds", {{"mean", number(facts.step_s)}, {"slowest_rank", number(facts.slowest_s)}}},
                    {"hidden_communication", number(facts.hidden)},
                    {"straggler", facts.straggler_rank ? EventJson{{"rank", *facts.straggler_rank},
                                                                   {"delay_seconds", facts.straggler_delay_s}}
                                                       : EventJson(nullptr)}}));
}

void EventLog::write(std::string_view event, std::string_view fields) {
  if (!file_) return;
  EventJson line = {{"schema", job_.schema},
                    {"time", time_text(std::chrono::system_clock::now())},
                    {"event", event},
                    {"run_id", job_.run_id},
                    {"slurm_job_id", job_.slurm_job_id.empty() ? EventJson(nullptr) : EventJson(job_.slurm_job_id)}};
  line.update(EventJson::parse(fields));
  const int error = base::write_all(file_.get(), event_text(line) + "\n");
  if (error == 0) return;
  file_.reset();
  note_(fmt::format("writing {}: {}; it has no more events of this job", what_, base::errno_text(error)));
}

}  // namespace ddp::diagnostics
