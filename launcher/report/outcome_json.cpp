#include "report/outcome_json.hpp"

#include <array>

#include "base/process.hpp"
#include "outcome/error_file.hpp"
#include "report/report_lines.hpp"

namespace ddp::launcher {
namespace {

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json signal_json(int signal) {
  return signal == 0 ? Json(nullptr) : Json{{"number", signal}, {"name", base::signal_name(signal)}};
}

Json rank_json(const RankName& name) {
  return {{"rank", name.rank},
          {"local_rank", name.local_rank},
          {"host", name.host},
          {"pid", name.pid > 0 ? Json(name.pid) : Json(nullptr)}};
}

Json error_json(const RankTraces& traces) {
  Json json = {
      {"file", text_or_null(traces.error_file)}, {"message", nullptr}, {"traceback", nullptr}, {"time", nullptr}};
  if (traces.error_content.empty()) return json;
  const WorkerError error = parse_error_file(traces.error_content);
  json["message"] = text_or_null(error.message);
  json["traceback"] = text_or_null(error.traceback);
  if (error.time) json["time"] = time_text(*error.time);
  return json;
}

Json failure_json(const RankFailure& failure) {
  Json json = rank_json(failure.name);
  json["time"] = time_text(failure.time);
  json.update(rank_end_json(failure.end));
  json["abort"] = failure.abort ? Json{{"status", failure.abort->status}, {"message", failure.abort->message}} : Json();
  json["error"] = error_json(failure.traces);
  json["stderr_tail"] = text_or_null(failure.traces.stderr_tail);
  json["oom"] = text_or_null(failure.traces.oom);
  json["pmix_server"] = text_or_null(failure.traces.pmix_server);
  json["seconds_hung"] = failure.hung ? Json(seconds(*failure.hung)) : Json(nullptr);
  json["interpreter"] = text_or_null(failure.traces.interpreter);
  json["logs"] = {{"stdout", text_or_null(failure.traces.stdout_log)},
                  {"stderr", text_or_null(failure.traces.stderr_log)}};
  return json;
}

Json stopped_json(const StoppedRank& stopped) {
  Json json = rank_json(stopped.name);
  json["time"] = time_text(stopped.time);
  json["signal"] = signal_json(stopped.signal);
  json["seconds_before_failure"] = seconds(stopped.before_failure);
  return json;
}

Json stack_json(const StackGroup& group) {
  return {{"ranks", group.ranks}, {"tool", group.tool}, {"text", group.text}};
}

Json stack_note_json(const StackNote& note) { return {{"hosts", note.hosts}, {"text", note.text}}; }

Json hang_json(const std::optional<HangReport>& hang) {
  if (!hang) return nullptr;
  Json json = {{"when", hang->when}};
  json.update(Json::parse(hang->json));
  return json;
}

Json verdict_json(const std::optional<GroupVerdict>& verdict) {
  return verdict ? Json{{"ranks", verdict->ranks}, {"reported_by", verdict->reporters}} : Json(nullptr);
}

Json early_json(const EarlyEnd& early) {
  Json json = rank_json(early.name);
  json["time"] = time_text(early.time);
  json["seconds_before_failure"] = seconds(early.before_failure);
  return json;
}

/// Null where not all nodes joined.
Json node_rank_or_null(const NodeFailure& node) { return node.node_rank < 0 ? Json(nullptr) : Json(node.node_rank); }

template <class Item, class Convert>
Json list(const std::vector<Item>& items, Convert convert) {
  Json json = Json::array();
  for (const Item& item : items) json.push_back(convert(item));
  return json;
}

}  // namespace

Json rank_end_json(const std::optional<RankEnd>& end) {
  return {{"exit_code", end && !end->by_signal ? Json(end->code) : Json(nullptr)},
          {"signal", end && end->by_signal ? signal_json(end->code) : Json(nullptr)},
          {"core_dumped", end && end->core_dumped}};
}

Json node_json(const NodeFailure& node) {
  return {{"node_rank", node_rank_or_null(node)}, {"host", text_or_null(node.host)}, {"num_ranks", node.num_ranks},
          {"time", time_text(node.time)},         {"message", node.message},         {"exit_status", node.exit_status}};
}

Json root_cause_json(const JobOutcome& outcome) {
  const auto of_rank = [](const char* kind, const RankName& name) {
    return Json{{"kind", kind}, {"rank", name.rank}, {"host", name.host}};
  };
  switch (outcome.root_cause()) {
    case RootCause::none: return nullptr;
    case RootCause::node:
      return {{"kind", "node"},
              {"node_rank", node_rank_or_null(outcome.nodes.front())},
              {"host", text_or_null(outcome.nodes.front().host)}};
    case RootCause::stopped_rank: return of_rank("stopped_rank", outcome.stopped.front().name);
    case RootCause::rank: return of_rank("rank", outcome.failures.front().name);
    case RootCause::signal: return {{"kind", "signal"}};
    case RootCause::timeout: return {{"kind", "timeout"}};
    case RootCause::unkillable: return of_rank("unkillable", outcome.unkillable.front());
  }
  return nullptr;
}

Json generation_json(const GenerationFacts& generation) {
  constexpr std::array kReasons{"start", "restart", "node_lost", "node_left", "node_joined", "requested", "resized"};
  return {{"reason", kReasons.at(static_cast<std::size_t>(generation.reason))},
          {"time", time_text(generation.time)},
          {"nodes_before", generation.change.before},
          {"survivors", generation.change.survivors},
          {"joined", generation.change.joined},
          {"left", generation.change.left},
          {"parked", generation.change.parked},
          {"asked_by", text_or_null(generation.change.asked_by)},
          {"lost", generation.lost}};
}

Json outcome_json(const JobOutcome& outcome) {
  return {{"signal", signal_json(outcome.forwarded_signal)},
          {"timed_out", outcome.timed_out},
          {"nodes", list(outcome.nodes, node_json)},
          {"stopped", list(outcome.stopped, stopped_json)},
          {"failures", list(outcome.failures, failure_json)},
          {"ended_early", list(outcome.early, early_json)},
          {"ended_on_request", outcome.ended_on_request},
          {"killed", outcome.killed},
          {"lost", outcome.lost},
          {"unkillable", list(outcome.unkillable, rank_json)},
          {"silent_nodes", outcome.silent},
          {"store_refusals", outcome.store_refusals},
          {"stacks", list(outcome.stacks.groups, stack_json)},
          {"stack_notes", list(outcome.stacks.notes, stack_note_json)},
          {"hang", hang_json(outcome.hang)},
          {"verdict", verdict_json(outcome.verdict)}};
}

}  // namespace ddp::launcher
