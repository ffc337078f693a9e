#include "report/event_log.hpp"

#include "report/outcome_json.hpp"
#include "report/report_lines.hpp"

namespace ddp::launcher {
namespace {

std::string fields_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

void EventLog::rank_ended(int attempt, int rank, const std::string& host, const RankEnd& end) {
  Json json = {{"attempt", attempt}, {"rank", rank}, {"host", host}};
  json.update(rank_end_json(end));
  write("rank_ended", fields_text(json));
}

void EventLog::node_lost(int attempt, const NodeFailure& node) {
  Json json = {{"attempt", attempt}};
  json.update(node_json(node));
  write("node_lost", fields_text(json));
}

void EventLog::restart(const JobOutcome& outcome, int attempt, int restart) {
  Json json = {{"attempt", attempt}, {"restart", restart}, {"root_cause", root_cause_json(outcome)}};
  json.update(outcome_json(outcome));
  write("restart", fields_text(json));
}

void EventLog::generation_started(int generation, const GenerationFacts& facts) {
  Json json = {{"attempt", generation}};
  json.update(generation_json(facts));
  json.erase("time");  // the line has it
  write("generation_started", fields_text(json));
}

void EventLog::job_ended(const JobOutcome& outcome, int attempt, int restarts_used, std::chrono::milliseconds total,
                         bool known) {
  const bool claimed = known || !outcome.success();
  Json json = {{"attempt", attempt},
               {"restarts_used", restarts_used},
               {"success", claimed ? Json(outcome.success()) : Json(nullptr)},
               {"exit_status", claimed ? Json(outcome.exit_status()) : Json(nullptr)},
               {"root_cause", root_cause_json(outcome)},
               {"seconds_total", seconds(total)}};
  json.update(outcome_json(outcome));
  write("job_ended", fields_text(json));
}

}  // namespace ddp::launcher
