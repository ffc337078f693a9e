// Strict reading of stream numbers, rank lists and filter texts.
#include "options/output_options.hpp"

#include <filesystem>

#include <fmt/format.h>

#include "cli/option_values.hpp"
#include "diagnostics/metrics/metrics_endpoint.hpp"
#include "options/option_groups.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kStreamsHint =
    "give 0 (none), 1 (standard output), 2 (standard error) or 3 (both), or LOCAL_RANK:NUMBER,... as in 0:3,1:2";

Streams read_streams(const std::string& option, const std::string& text, std::string_view digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3')
    cli::reject_value(option, text, "does not select streams", kStreamsHint);
  return static_cast<Streams>(digit[0] - '0');
}

/// Digits only, below @p end; -1 for anything else.
int read_rank(std::string_view text, int end) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return -1;
  int value = 0;
  for (const char digit : text) {
    value = value * 10 + (digit - '0');
    if (value >= end) return -1;
  }
  return value;
}

}  // namespace

StreamSelection parse_streams(const std::string& option, const std::string& text) {
  StreamSelection selection;
  if (text.find(':') == std::string::npos) {
    selection.all = read_streams(option, text, text);
    return selection;
  }
  for (const std::string_view part : cli::parts_of(text, ',')) {
    const auto colon = part.find(':');
    const int rank = read_rank(part.substr(0, colon), kMaxRanksPerNode);
    if (colon == std::string_view::npos || rank < 0)
      cli::reject_value(option, text, "does not select streams", kStreamsHint);
    selection.by_local_rank[rank] = read_streams(option, text, part.substr(colon + 1));
  }
  return selection;
}

std::set<int> parse_rank_list(const std::string& option, const std::string& text, int end) {
  const auto allowed = [end] { return fmt::format("give ranks from 0 to {} or ranges, as in 0,8-15", end - 1); };
  std::set<int> ranks;
  for (const std::string_view part : cli::parts_of(text, ',')) {
    const auto dash = part.find('-');
    const int first = read_rank(part.substr(0, dash), end);
    const int last = dash == std::string_view::npos ? first : read_rank(part.substr(dash + 1), end);
    if (first < 0 || last < 0) cli::reject_value(option, text, "is not a list of ranks", allowed());
    if (first > last)
      cli::reject_value(option, text, "has a range that ends before it begins",
                        fmt::format("did you mean {}-{}?", last, first));
    if (last - first >= kMaxListedRanks - static_cast<int>(ranks.size()))
      cli::reject_value(option, text, "names too many ranks", fmt::format("name {} at most", kMaxListedRanks - 1));
    for (int rank = first; rank <= last; ++rank) ranks.insert(ranks.end(), rank);
  }
  return ranks;
}

std::vector<std::string> parse_filters(const std::string& text) {
  std::vector<std::string> filters;
  std::string filter;
  const auto finish = [&] {
    if (!filter.empty()) filters.push_back(std::move(filter));
    filter.clear();
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != ',') {
      filter += text[at];
    } else if (at + 1 < text.size() && text[at + 1] == ',') {
      filter += ',';
      ++at;
    } else {
      finish();
    }
  }
  finish();
  return filters;
}

// Options on the output of ranks and of ddprun.

namespace {

/// torchrun ignores listed ranks that cannot exist, so they only cause a notice.
void check_local_ranks(OptionDraft& draft) {
  if (draft.options.nproc.kind != RanksPerNode::Kind::number) return;
  const int nproc = draft.options.nproc.number;
  const auto check = [&](const char* name, int highest) {
    if (highest >= nproc)
      draft.notice(fmt::format("{} names local rank {}, but local ranks are 0 to {}", name, highest, nproc - 1));
  };
  const LogOptions& logs = draft.options.logs;
  if (!logs.redirects.by_local_rank.empty()) check("--redirects", logs.redirects.by_local_rank.rbegin()->first);
  if (!logs.tee.by_local_rank.empty()) check("--tee", logs.tee.by_local_rank.rbegin()->first);
  if (logs.local_ranks_filter) check("--local-ranks-filter", *logs.local_ranks_filter->rbegin());
}

void check_ranks(const OptionDraft& draft) {
  const LaunchOptions& options = draft.options;
  const bool known = options.nproc.kind == RanksPerNode::Kind::number && (options.nodes_given || options.standalone);
  if (!options.logs.ranks_filter || !known) return;
  const int most = options.nodes.max * options.nproc.number;
  if (*options.logs.ranks_filter->rbegin() >= most)
    cli::reject_combination(fmt::format("--ranks-filter names rank {}, but there are at most {} ranks",
                                        *options.logs.ranks_filter->rbegin(), most),
                            fmt::format("name ranks from 0 to {}", most - 1));
}

/// DDP_* variables are read only where no option decides.
void settle_metrics(OptionDraft& draft, const base::Environment& environment) {
  const auto chosen = [&](const SourcedText& option, const char* variable) {
    return option.source.empty() ? SourcedText{variable, environment.text(variable)} : option;
  };
  const SourcedText port = chosen(draft.metrics_port, "DDP_METRICS_PORT");
  const SourcedText address = chosen(draft.metrics_address, "DDP_METRICS_ADDRESS");
  MetricsOptions& metrics = draft.options.metrics;
  if (port.text == "auto") {
    metrics.port = 0;
  } else if (port.text != "none") {
    metrics.port = static_cast<std::uint16_t>(cli::parse_whole(port.source, port.text, 1, 65'535));
  }
  if (!diagnostics::is_numeric_address(address.text))
    cli::reject_value(address.source, address.text, "is not a numeric address",
                      "give one of each node's addresses: 127.0.0.1, or 0.0.0.0 for all");
  metrics.address = address.text;
}

/// What is written of the job, not by its ranks.
void add_report_options(OptionTable& table, OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  table
      .add_value("--report-json", "FILE", "Write how and why the job ended to this file.",
                 [&](const auto& source, const auto& text) {
                   if (text.empty()) cli::reject_value(source, text, "is not a file", "give the path of a file");
                   options.report_json = text;
                 })
      .completes(ValueKind::file);
  table
      .add_value("--event-log", "FILE",
                 "Append the job's events to this file as they happen, one JSON object per line.",
                 [&](const auto& source, const auto& text) {
                   if (text.empty()) cli::reject_value(source, text, "is not a file", "give the path of a file");
                   options.event_log = text;
                 })
      .completes(ValueKind::file);
  table.add_value("--event-log-interval", "SECONDS",
                  "How often --event-log gets a line on steps, hidden communication and stragglers (default 60).",
                  [&](const auto& source, const auto& text) {
                    options.event_log_interval = cli::parse_positive_seconds(source, text, cli::kOneDay);
                  });
  table
      .add_value("--trace", "DIR",
                 "Let each rank write when parts of its first 50 steps began and ended into this folder, for 'ddp-info "
                 "trace DIR'. Sets DDP_TRACE_DIR.",
                 [&](const auto& source, const auto& text) {
                   if (text.empty()) cli::reject_value(source, text, "is not a folder", "give the path of a folder");
                   options.trace = std::filesystem::absolute(text).lexically_normal();
                 })
      .completes(ValueKind::folder);
  table
      .add_value("--metrics-port", "PORT",
                 "Let each node's agent answer Prometheus at http://127.0.0.1:PORT/metrics; auto: at a free port, "
                 "which it prints; none (the default): not at all.",
                 [&](const auto& source, const auto& text) {
                   draft.metrics_port = {source, text};
                 })
      .choices({"auto", "none"});
  table.add_value("--metrics-address", "ADDRESS",
                  "Address of each node to serve metrics at (default 127.0.0.1: this node only; 0.0.0.0: all). "
                  "Anyone who can reach it can read the metrics.",
                  [&](const auto& source, const auto& text) {
                    draft.metrics_address = {source, text};
                  });
  table
      .add_value("--dump-env", "FILE",
                 "Write the environment variables of all ranks, where they came from and what is wrong with them, as "
                 "each attempt starts: as a table to standard error, or to this file (JSON, for ddp-info env --diff) "
                 "on the node of rank 0.",
                 [&](const auto&, const auto& text) { options.dump_env = text.empty() ? "stderr" : text; })
      .completes(ValueKind::file)
      .optional_value();
}

}  // namespace

void add_output_options(OptionTable& table, OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  LogOptions& logs = options.logs;
  table.begin_group("Output");
  table
      .add_value("--log-dir", "DIR",
                 "Folder for log and error files; each job creates a subfolder. Default: a temporary folder, kept "
                 "with -r and -t, else removed when the job ends. /dev/null: no files.",
                 [&](const auto&, const auto& text) {
                   if (!text.empty()) logs.directory = text;
                 })
      .torchrun()
      .completes(ValueKind::folder);
  table
      .add_value("--log-layout", "attempt|rank",
                 "Files of -r and -t: DIR/RUN_ID/attempt_0/LOCAL_RANK/stdout.log as torchrun's (attempt, the default), "
                 "or DIR/rank.RANK/stdout as horovodrun's and mpirun's (rank), which a restart empties.",
                 [&](const auto& source, const auto& text) {
                   static const std::vector<std::string> kLayouts{"attempt", "rank"};
                   logs.by_rank = cli::parse_choice(source, text, kLayouts) == "rank";
                 })
      .choices({"attempt", "rank"});
  table
      .add_value("-r,--redirects", "WHICH",
                 "Streams that go to files only: 1 standard output, 2 standard error, 3 both, 0 none; or per local "
                 "rank, as in 0:3,1:2 (default 0).",
                 [&](const auto& source, const auto& text) { logs.redirects = parse_streams(source, text); })
      .torchrun();
  table
      .add_value("-t,--tee", "WHICH",
                 "Streams that go to files and, prefixed, to the console; values as for --redirects.",
                 [&](const auto& source, const auto& text) { logs.tee = parse_streams(source, text); })
      .torchrun();
  table
      .add_value("--local-ranks-filter", "RANKS", "Local ranks whose output reaches the console, as in 0,2-3.",
                 [&](const auto& source, const auto& text) {
                   if (!text.empty()) logs.local_ranks_filter = parse_rank_list(source, text, kMaxRanksPerNode);
                 })
      .torchrun();
  table.add_value("--ranks-filter", "RANKS", "Global ranks whose output reaches the console, as in 0,8-15.",
                  [&](const auto& source, const auto& text) {
                    logs.ranks_filter = parse_rank_list(source, text, kMaxNodes * kMaxRanksPerNode);
                  });
  table
      .add_value("--duplicate-stdout-filters", "TEXTS",
                 "Copy the --tee lines of standard output that contain one of these texts to filtered_stdout.log. "
                 "Commas separate texts; ',,' is a comma.",
                 [&](const auto&, const auto& text) { logs.stdout_filters = parse_filters(text); })
      .torchrun();
  table
      .add_value("--duplicate-stderr-filters", "TEXTS", "Likewise for standard error, to filtered_stderr.log.",
                 [&](const auto&, const auto& text) { logs.stderr_filters = parse_filters(text); })
      .torchrun();
  table
      .add_value("--log-format", "FORMAT", "Prefixed lines (text, the default) or one JSON object per line (json).",
                 [&](const auto& source, const auto& text) {
                   static const std::vector<std::string> kFormats{"text", "json"};
                   logs.format =
                       cli::parse_choice(source, text, kFormats) == "json" ? LogFormat::json : LogFormat::text;
                 })
      .choices({"text", "json"});
  table.add_flag("--log-timestamps", "Begin console lines with their time (UTC) and prefix, as --tee does.",
                 logs.timestamps);
  add_report_options(table, draft);
  table
      .add_value("--logs-specs", "NAME", "Ignored, for compatibility with torchrun: ddprun has no log plug-ins.",
                 [&](const auto& source, const auto&) {
                   draft.notice(fmt::format("{} is ignored: ddprun has no log plug-ins", source));
                 })
      .torchrun_without_variable();
  table.add_flag("-v,--verbose", "Report on standard error what ddprun does.", options.verbose);
}

void settle_output_options(const OptionTable&, OptionDraft& draft, const base::Environment& environment) {
  if (draft.options.logs.by_rank && !draft.options.logs.directory)
    cli::reject_combination("--log-layout rank has no folder for its files", "give one by --log-dir");
  if (const LogOptions& logs = draft.options.logs;
      logs.by_rank && !(logs.stdout_filters.empty() && logs.stderr_filters.empty()))
    cli::reject_combination("--log-layout rank has no files for --duplicate-stdout-filters and -stderr-filters",
                            "drop one of them");
  draft.options.logs.prefix_template = environment.raw("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  settle_metrics(draft, environment);
  check_local_ranks(draft);
  check_ranks(draft);
}

}  // namespace ddp::launcher
