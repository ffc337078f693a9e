#include "flight/flight_command.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "command/json_files.hpp"
#include "command/output.hpp"

namespace ddp::tools::flight {
namespace {

using Json = nlohmann::ordered_json;

std::string_view wording(Divergence kind) {
  switch (kind) {
    case Divergence::missing_call: return "a call is missing";
    case Divergence::extra_call: return "a call too many";
    case Divergence::other_operation: return "another operation";
    case Divergence::other_size: return "another size";
    case Divergence::other_dtype: return "another element type";
    case Divergence::other_reduction: return "another reduction";
    case Divergence::other_root: return "another root";
    case Divergence::other_parts: return "other sizes of the parts";
    case Divergence::other_order: return "another order, or a call is missing";
    case Divergence::no_dump: return "it ended, or could not write its file";
  }
  return "unknown";
}

std::string have(const std::vector<int>& ranks) { return ranks.size() == 1 ? "has" : "have"; }

/// What they did, as the end of "rank 3 ...".
std::string deed(const Finding& finding) {
  const std::string_view kind = wording(finding.kind);
  if (finding.kind == Divergence::no_dump) return fmt::format("{} left no file: {}", have(finding.culprits), kind);
  if (finding.theirs.empty()) {
    return fmt::format("{} not called {}: {}", have(finding.culprits), finding.expected, kind);
  }
  return fmt::format("called {}: {}", finding.theirs, kind);
}

std::string describe(const Finding& finding) {
  std::string text = fmt::format("  {} {}\n", format_ranks(finding.culprits), deed(finding));
  if (!finding.others.empty()) {
    text += finding.expected.empty()
                ? fmt::format("  {} {} not called it\n", format_ranks(finding.others), have(finding.others))
                : fmt::format("  {} called {}\n", format_ranks(finding.others), finding.expected);
  }
  if (!finding.sure) text += "  nothing shows which side is wrong\n";
  return text;
}

Json finding_json(const Finding& finding) {
  const auto text_or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  return {{"kind", to_string(finding.kind)},
          {"group", finding.group},
          {"ranks", finding.culprits},
          {"called", text_or_null(finding.theirs)},
          {"others", finding.others},
          {"others_called", text_or_null(finding.expected)},
          {"sure", finding.sure}};
}

}  // namespace

std::string text_report(const DumpFolder& folder, const Analysis& analysis) {
  std::string text = fmt::format("{}: {} rank{}, files of {}", folder.job, analysis.ranks.size(),
                                 analysis.ranks.size() == 1 ? "" : "s",
                                 analysis.without_dump.empty() ? "all" : fmt::to_string(folder.dumps.size()));
  if (!analysis.without_dump.empty()) text += fmt::format("; none of {}", format_ranks(analysis.without_dump));
  text += '\n';
  if (analysis.first) {
    text += fmt::format("first, in group {}:\n{}", analysis.first->group, describe(*analysis.first));
  } else {
    text += analysis.waits.empty() ? "no rank differs from the others, and none waits\n"
                                   : "no rank differs from the others\n";
  }
  for (const Finding& finding : analysis.further) {
    text += fmt::format("further, in group {}:\n{}", finding.group, describe(finding));
  }
  if (!analysis.waits.empty()) text += "waiting:\n";
  for (const Wait& wait : analysis.waits) {
    text +=
        fmt::format("  {} in {} of group {} for {}, {:.1f} s\n", format_ranks(wait.ranks), wait.operation, wait.group,
                    wait.missing.empty() ? "its end: all have called it" : format_ranks(wait.missing), wait.seconds);
  }
  if (!analysis.stragglers.empty()) text += "slow:\n";
  for (const Straggler& each : analysis.stragglers) {
    text +=
        fmt::format("  rank {} came last in {} of {} collectives; the others waited {:.3f} s for it, {:.3f} s in {}\n",
                    each.rank, each.last, each.of, each.seconds, each.longest, each.longest_at);
  }
  if (!folder.left_out.empty()) text += "left out:\n";
  for (const std::string& line : folder.left_out) text += fmt::format("  {}\n", line);
  return text;
}

std::string json_report(const DumpFolder& folder, const Analysis& analysis) {
  Json further = Json::array();
  for (const Finding& finding : analysis.further) further.push_back(finding_json(finding));
  Json waits = Json::array();
  for (const Wait& wait : analysis.waits) {
    waits.push_back({{"group", wait.group},
                     {"ranks", wait.ranks},
                     {"operation", wait.operation},
                     {"waits_for", wait.missing},
                     {"seconds", wait.seconds}});
  }
  Json slow = Json::array();
  for (const Straggler& each : analysis.stragglers) {
    slow.push_back({{"rank", each.rank},
                    {"last", each.last},
                    {"of", each.of},
                    {"seconds", each.seconds},
                    {"longest_seconds", each.longest},
                    {"longest_operation", each.longest_at}});
  }
  Json dumps = Json::array();
  for (const RankDump& dump : folder.dumps) {
    dumps.push_back({{"rank", dump.rank}, {"file", dump.file}, {"host", dump.host}, {"reason", dump.reason}});
  }
  const Json document{{"schema", "ddp-info-flight/1"},
                      {"job", folder.job},
                      {"ranks", analysis.ranks},
                      {"without_file", analysis.without_dump},
                      {"first", analysis.first ? finding_json(*analysis.first) : Json(nullptr)},
                      {"further", std::move(further)},
                      {"waits", std::move(waits)},
                      {"slow", std::move(slow)},
                      {"files", std::move(dumps)},
                      {"left_out", folder.left_out}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

cli::OptionTable flight_table(FlightOptions& options) {
  cli::OptionTable table{
      {.name = "ddp-info flight",
       .usage = {"DIR [OPTIONS]"},
       .description = {"Compares what the ranks of a job called last, from the files of their flight recorders in DIR: "
                       "which rank first differed "
                       "from the others, which ranks wait for which, and which were slow.",
                       "Ranks write these files into DDP_FLIGHT_DIR when a process group fails, and at the signal "
                       "DDP_FLIGHT_SIGNAL."},
       .examples = {{"DDP_FLIGHT_DIR=$PWD/flight srun --ddp ./train", "every rank keeps its last 2000 operations"},
                    {"ddp-info flight flight", "which rank made it fail"},
                    {"ddp-info flight flight --json | jq .first",
                     "for programs; docs/reference/ddp-info.md describes the fields"}},
       .exit_statuses = {{"0", "success, whatever was found"},
                         {"1", "failure (no usable file, the output)"},
                         {"2", "wrong command line"}}}};
  table.add_help();
  table.add_flag("--json", "Print one JSON document instead of text.", options.json);
  return table;
}

FlightOptions parse_flight_options(std::span<const std::string> arguments) {
  FlightOptions options;
  cli::OptionTable table = flight_table(options);
  const auto words = table.read(arguments);
  if (table.given("--help")) {
    options.help = table.help();
  } else {
    options.folder = one_folder(words, "give the one that DDP_FLIGHT_DIR named");
  }
  return options;
}

void run_flight(const FlightOptions& options) {
  if (!options.help.empty()) return write_standard_output(options.help);
  const DumpFolder folder = read_dump_folder(options.folder);
  const Analysis analysis = analyse(folder.dumps);
  write_standard_output(options.json ? json_report(folder, analysis) : text_report(folder, analysis));
}

}  // namespace ddp::tools::flight
