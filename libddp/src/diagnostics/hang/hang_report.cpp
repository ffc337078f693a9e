#include "diagnostics/hang/hang_report.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "diagnostics/hang/whereabouts.hpp"

namespace ddp::diagnostics {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostHosts = 4;
constexpr std::size_t kMostStackBytes = 8192;

/// Ranks of which the same can be said, but for times.
struct Fold {
  std::string text;
  std::string last;
  std::vector<int> ranks{};
  std::vector<std::string> hosts{};
  double longest_s = -1;
  Place place = Place::unknown;
};

std::vector<Fold> fold(const JobObservation& job) {
  std::vector<Fold> folds;
  for (const RankFacts& rank : job.ranks) {
    const Whereabouts where = whereabouts(rank);
    // How much of a core differs everywhere.
    const std::string text =
        where.text.substr(0, where.place == Place::computing ? where.text.find(" (") : std::string::npos);
    auto same = std::find_if(folds.begin(), folds.end(),
                             [&](const Fold& each) { return each.text == text && each.last == where.last; });
    if (same == folds.end()) {
      folds.push_back({.text = text, .last = where.last, .place = where.place});
      same = folds.end() - 1;
    }
    same->ranks.push_back(rank.rank);
    same->longest_s = std::max(same->longest_s, where.since_s);
    if (std::find(same->hosts.begin(), same->hosts.end(), rank.host) == same->hosts.end())
      same->hosts.push_back(rank.host);
  }
  return folds;
}

std::string hosts_of(const std::vector<std::string>& hosts) {
  const std::size_t shown = std::min(hosts.size(), kMostHosts);
  std::string text =
      fmt::format("{}", fmt::join(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < hosts.size()) text += fmt::format(" and {} more", hosts.size() - shown);
  return text;
}

std::string line_of(const Fold& each) {
  std::string line = fmt::format("  {} ({}): {}", format_ranks(each.ranks), hosts_of(each.hosts), each.text);
  if (!each.last.empty()) {
    line += fmt::format("; {}", each.last);
    if (each.longest_s >= 0) line += fmt::format(", ended {} ago", duration(each.longest_s));
  } else if (each.longest_s >= 0) {
    line += fmt::format(" for {}", duration(each.longest_s));
  }
  return line + "\n";
}

void append_indented(std::string& to, std::string_view text) {
  const bool cut = text.size() > kMostStackBytes;
  if (cut) text = text.substr(0, text.rfind('\n', kMostStackBytes));
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    to += fmt::format("    {}\n", text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  if (cut) to += "    ... (--json has all)\n";
}

std::string_view answer_word(HangAnswer answer) {
  switch (answer) {
    case HangAnswer::nothing_hangs: return "no";
    case HangAnswer::hangs: return "yes";
    case HangAnswer::cannot_tell: break;
  }
  return "unknown";
}

Json call_json(const flight::FlightView::Call& call) {
  Json json = {{"operation", call.operation}, {"sequence", call.sequence}, {"group", call.group},
               {"count", call.count},         {"peer", nullptr},           {"seconds", call.age_s},
               {"label", call.label}};
  if (call.peer >= 0) json["peer"] = call.peer;
  return json;
}

Json rank_json(const RankFacts& rank) {
  const Whereabouts where = whereabouts(rank);
  Json json = {{"rank", rank.rank},
               {"host", rank.host},
               {"pid", rank.pid},
               {"program", rank.program},
               {"where", to_string(where.place)},
               {"text", where.last.empty() ? where.text : where.text + ", " + where.last},
               {"seconds", nullptr},
               {"state", std::string(1, rank.state)},
               {"system_call", rank.call},
               {"kernel", rank.kernel},
               {"cores", rank.cores},
               {"swaps", rank.swaps},
               {"steady", rank.steady},
               {"flight_recorder", rank.flight.has_value()},
               {"flight_source", nullptr},
               {"moves", rank.moves},
               {"unfinished", Json::array()},
               {"last", nullptr},
               {"groups", Json::array()}};
  if (where.since_s >= 0) json["seconds"] = where.since_s;
  if (!rank.flight) return json;
  json["flight_source"] = rank.flight_source == FlightSource::libddp ? "libddp" : "pytorch";
  for (const auto& call : rank.flight->unfinished) json["unfinished"].push_back(call_json(call));
  if (rank.flight->last) json["last"] = call_json(*rank.flight->last);
  for (const auto& group : rank.flight->groups) {
    json["groups"].push_back(
        {{"name", group.name}, {"backend", group.backend}, {"size", group.size}, {"last_called", group.last_queued}});
  }
  return json;
}

}  // namespace

std::string hang_text(const JobObservation& job, const HangVerdict& verdict) {
  std::string text = verdict.text + "\n";
  for (const Fold& each : fold(job)) text += line_of(each);
  for (const HangVerdict::Wait& wait : verdict.waits) {
    text += fmt::format("  {}: {} {} {}, for {}\n", wait.operation, format_ranks(wait.waiting),
                        wait.waiting.size() == 1 ? "waits" : "wait",
                        wait.missing.empty() ? "though all have called it" : "for " + format_ranks(wait.missing),
                        duration(wait.age_s));
  }
  for (const NcclTrouble& trouble : job.nccl) text += fmt::format("  NCCL: {}\n", trouble.text);
  for (const StackGroup& group : job.stacks.groups) {
    text += fmt::format("  {} ({}):\n", format_ranks(group.ranks), group.tool);
    append_indented(text, group.text);
  }
  for (const StackNote& note : job.stacks.notes) text += fmt::format("  {}: {}\n", hosts_of(note.hosts), note.text);
  for (const std::string& note : job.notes) text += fmt::format("  {}\n", note);
  return text;
}

std::string hang_json(const JobObservation& job, const HangVerdict& verdict) {
  Json ranks = Json::array();
  for (const RankFacts& rank : job.ranks) ranks.push_back(rank_json(rank));
  Json waits = Json::array();
  for (const HangVerdict::Wait& wait : verdict.waits) {
    waits.push_back(
        {{"operation", wait.operation}, {"waiting", wait.waiting}, {"missing", wait.missing}, {"seconds", wait.age_s}});
  }
  Json stacks = Json::array();
  for (const StackGroup& group : job.stacks.groups)
    stacks.push_back({{"ranks", group.ranks}, {"tool", group.tool}, {"text", group.text}});
  Json nccl = Json::array();
  for (const NcclTrouble& trouble : job.nccl)
    nccl.push_back({{"text", trouble.text}, {"ranks", ranks_behind(job, trouble)}});
  Json notes = job.notes;
  for (const StackNote& note : job.stacks.notes)
    notes.push_back(fmt::format("{}: {}", hosts_of(note.hosts), note.text));
  const Json document = {{"schema", "ddp-info-status/1"}, {"hangs", answer_word(verdict.answer)},
                         {"verdict", verdict.text},       {"culprits", verdict.culprits},
                         {"likely", verdict.likely},      {"world_size", job.world_size()},
                         {"ranks", std::move(ranks)},     {"waits", std::move(waits)},
                         {"nccl", std::move(nccl)},       {"stacks", std::move(stacks)},
                         {"notes", std::move(notes)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddp::diagnostics
