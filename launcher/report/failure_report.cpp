// Writes the report of a failed job, root cause first.
#include "report/failure_report.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/process.hpp"
#include "report/failure_lines.hpp"
#include "report/report_lines.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kMostOthers = 16;
constexpr std::size_t kMostGenerations = 16;
constexpr std::size_t kMostUnkillable = 16;
constexpr std::size_t kLongestRankList = 200;
std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

/// "ranks 1-3 ended with exit code 0, the first 3.2 s before the first failure".
std::string early_text(const std::vector<EarlyEnd>& early, std::string_view event) {
  const double before = seconds(early.front().before_failure);
  if (early.size() == 1) {
    const RankName& name = early.front().name;
    return fmt::format("rank {} ({}) ended with exit code 0, {:.1f} s before {}", name.rank, name.host, before, event);
  }
  std::vector<int> ranks;
  for (const EarlyEnd& each : early) ranks.push_back(each.name.rank);
  std::sort(ranks.begin(), ranks.end());
  std::string names = format_ranks(ranks);
  if (names.size() > kLongestRankList) names = fmt::format("{} ranks (--report-json lists them)", ranks.size());
  return fmt::format("{} ended with exit code 0, the first {:.1f} s before {}", names, before, event);
}

/// Names early ends that others may have waited for; empty if there are none.
std::string early_line(const JobOutcome& outcome, std::string_view event) {
  if (outcome.early.empty()) return {};
  return fmt::format("{}; the others may have waited for {}", early_text(outcome.early, event),
                     outcome.early.size() == 1 ? "it" : "them");
}

void add_stopped(ReportLines& lines, int number, const StoppedRank& stopped) {
  add_head(lines, number, stopped.time, stopped.name.host);
  add_rank(lines, stopped.name);
  lines.field("pid", fmt::format("{}", stopped.name.pid));
  lines.field("stopped",
              fmt::format("rank {} was stopped by {} {:.1f} s before the first failure and was not resumed",
                          stopped.name.rank, base::signal_name(stopped.signal), seconds(stopped.before_failure)));
}

void add_node(ReportLines& lines, int number, const NodeFailure& node) {
  add_head(lines, number, node.time, node.host);
  if (node.node_rank >= 0) lines.field("node", fmt::format("{} ({})", node.node_rank, plural(node.num_ranks, "rank")));
  lines.field("failure", shortened(node.message, kRootTracebackBytes));
}

/// "2 other ranks were ended by ddprun, 1 by SIGKILL."; empty if there are none.
std::string closing_line(const JobOutcome& outcome, const std::string& ended_by) {
  const int ended = outcome.ended_on_request + outcome.killed;
  if (ended == 0) return {};
  std::string line =
      fmt::format("{} {} ended by {}", plural(ended, "other rank"), ended == 1 ? "was" : "were", ended_by);
  if (outcome.killed > 0) line += fmt::format(", {} by SIGKILL", outcome.killed);
  return line + ".";
}

/// What ended a job that was already failing.
std::string end_line(const JobOutcome& outcome) {
  if (outcome.forwarded_signal != 0)
    return fmt::format("ddprun received {} after the first failure.", base::signal_name(outcome.forwarded_signal));
  return outcome.timed_out ? "--timeout expired after the first failure." : "";
}

std::string unkillable_lines(const JobOutcome& outcome) {
  std::string text;
  const std::size_t shown = std::min(outcome.unkillable.size(), kMostUnkillable);
  for (std::size_t i = 0; i < shown; ++i) {
    const RankName& name = outcome.unkillable[i];
    text += fmt::format(
        "ddprun: rank {} (pid {} on {}) did not end even after SIGKILL; does its disk or device still answer?\n",
        name.rank, name.pid, name.host);
  }
  if (shown < outcome.unkillable.size())
    text += fmt::format("ddprun: ... and {} more\n", outcome.unkillable.size() - shown);
  return text;
}

std::string silent_lines(const JobOutcome& outcome, const std::string& launcher) {
  std::string text;
  const std::size_t shown = std::min(outcome.silent.size(), kMostUnkillable);
  for (std::size_t i = 0; i < shown; ++i) {
    text += fmt::format("{}: {} did not answer; processes of the job may still be running there\n", launcher,
                        outcome.silent[i]);
  }
  if (shown < outcome.silent.size())
    text += fmt::format("{}: ... and {} more\n", launcher, outcome.silent.size() - shown);
  return text;
}

/// Repeats refusals that were shown when they happened, perhaps long before.
std::string refusal_lines(const JobOutcome& outcome, const std::string& launcher) {
  std::string text;
  for (const std::string& line : outcome.store_refusals) text += fmt::format("{}: {}\n", launcher, line);
  return text;
}

std::string hang_lines(const JobOutcome& outcome, const std::string& launcher) {
  return outcome.hang ? fmt::format("{}: {}: {}", launcher, outcome.hang->when, outcome.hang->text) : std::string{};
}

/// The line for a job that did not fail by itself.
std::string ended_line(const JobOutcome& outcome) {
  std::string text;
  if (outcome.forwarded_signal != 0) {
    text = fmt::format("ddprun: ended by {}: forwarded to all ranks", base::signal_name(outcome.forwarded_signal));
  } else if (outcome.timed_out) {
    text = "ddprun: ended by --timeout: all ranks got SIGTERM";
  } else {
    return {};
  }
  text += fmt::format("; {} ended after it", plural(outcome.ended_on_request, "rank"));
  if (outcome.killed > 0) text += fmt::format(", {} had to be killed", outcome.killed);
  if (outcome.lost > 0) text += fmt::format(", {} were on nodes lost meanwhile", outcome.lost);
  text += "\n";
  if (const std::string early = early_line(outcome, "that"); !early.empty()) text += fmt::format("ddprun: {}\n", early);
  return text;
}

/// "n2 was lost, n5 joined".
std::string reason_of(const GenerationFacts& generation) {
  std::vector<std::string> parts;
  const auto add = [&parts](const std::vector<std::string>& hosts, const char* what) {
    if (!hosts.empty()) parts.push_back(fmt::format("{} {}", fmt::join(hosts, ", "), what));
  };
  if (generation.reason == GenerationReason::restart) parts.emplace_back("restart after a failure");
  if (generation.reason == GenerationReason::requested) parts.emplace_back("the ranks asked for it");
  add(generation.lost, generation.lost.size() == 1 ? "was lost" : "were lost");
  add(generation.change.left, "left");
  if (!generation.change.parked.empty()) parts.push_back(parked_text(generation.change));
  add(generation.change.joined, "joined");
  if (!generation.change.asked_by.empty()) parts.push_back("asked by " + generation.change.asked_by);
  return parts.empty() ? "start" : fmt::format("{}", fmt::join(parts, ", "));
}

/// Those of a job whose nodes have changed, with their reasons.
void add_generations(ReportLines& lines, const std::vector<GenerationFacts>& generations) {
  const bool changed = std::any_of(generations.begin(), generations.end(), [](const GenerationFacts& each) {
    return each.reason != GenerationReason::start && each.reason != GenerationReason::restart;
  });
  if (!changed) return;
  lines.border('-');
  lines.add("Generations:");
  const std::size_t first = generations.size() > kMostGenerations ? generations.size() - kMostGenerations : 0;
  if (first > 0) lines.add("  {} before (--report-json lists all)", first);
  for (std::size_t number = first; number < generations.size(); ++number)
    lines.add("  {} at {:%H:%M:%S}: {}", number,
              fmt::localtime(std::chrono::system_clock::to_time_t(generations[number].time)),
              reason_of(generations[number]));
}

/// The job's size if it has several nodes, and its restarts; otherwise empty.
std::string job_line(const ReportContext& context) {
  std::string line;
  if (context.num_nodes > 1)
    line = fmt::format("{} on {} nodes", plural(context.world_size, "rank"), context.num_nodes);
  if (context.max_restarts > 0) {
    line += fmt::format("{}attempt {}: {} of at most {} used", line.empty() ? "" : "; ", context.attempt,
                        context.restarts_used, plural(context.max_restarts, "restart"));
  }
  return line;
}

/// Why a job on one node started no rank, or why all ranks failed at once: the message needs no report around it. Null
/// for other failures.
const NodeFailure* only_message(const JobOutcome& outcome, const ReportContext& context) {
  const bool alone = outcome.nodes.size() == 1 && outcome.failures.empty() && outcome.stopped.empty() &&
                     outcome.ended_on_request + outcome.killed == 0 && context.num_nodes <= 1;
  return alone && end_line(outcome).empty() ? &outcome.nodes.front() : nullptr;
}

/// Adds the root cause, then at most kMostOthers others.
void add_failures(ReportLines& lines, const JobOutcome& outcome) {
  auto nodes = outcome.nodes.begin();
  auto stopped = outcome.stopped.begin();
  auto failures = outcome.failures.begin();
  const bool several = outcome.failures.size() > 1;
  int number = 0;
  const RootCause cause = outcome.root_cause();
  if (cause == RootCause::stopped_rank) {
    lines.add("Root Cause (stopped before the first failure):");
    // Any of these may be the rank that the others waited for.
    for (std::size_t i = 0; i < kMostOthers && stopped != outcome.stopped.end(); ++i)
      add_stopped(lines, number++, *stopped++);
  } else if (outcome.verdict && cause == RootCause::rank) {
    const GroupVerdict& verdict = *outcome.verdict;
    const std::string reporters = format_ranks(verdict.reporters);
    lines.add("Root Cause (whom the errors of {} name):", reporters);
    if (verdict.has_failed) {
      add_failure(lines, number++, *failures++, {.first = true, .several = several});
    } else {
      add_named_ranks(lines, number++, verdict);
    }
  } else {
    lines.add("Root Cause (first observed failure):");
    if (cause == RootCause::node) {
      add_node(lines, number++, *nodes++);
    } else {
      add_failure(lines, number++, *failures++, {.first = true, .several = several});
    }
  }
  lines.border('-');
  if (const std::string early = early_line(outcome, "the first failure"); !early.empty()) {
    lines.add("Ended early: {}.", early);
    lines.border('-');
  }
  lines.add("Other Failures:");
  const auto left = [&] {
    return static_cast<std::size_t>((outcome.nodes.end() - nodes) + (outcome.stopped.end() - stopped) +
                                    (outcome.failures.end() - failures));
  };
  if (left() == 0) lines.add("  <NO_OTHER_FAILURES>");
  for (std::size_t shown = 0; shown < kMostOthers && left() > 0; ++shown) {
    if (nodes != outcome.nodes.end()) {
      add_node(lines, number++, *nodes++);
    } else if (stopped != outcome.stopped.end()) {
      add_stopped(lines, number++, *stopped++);
    } else {
      const bool first = failures == outcome.failures.begin();
      if (const auto end = end_of_equal_failures(failures, outcome.failures.end()); !first && end - failures > 1) {
        add_equal_failures(lines, number++, {failures, end});
        failures = end;
      } else {
        add_failure(lines, number++, *failures++, {.first = first, .several = several});
      }
    }
  }
  if (left() > 0) lines.add("... and {} more (--report-json lists all)", left());
}

/// "rank 3 on n1 exited with 85".
std::string summary(const RankFailure& failure) {
  const std::string name = fmt::format("rank {} on {}", failure.name.rank, failure.name.host);
  if (failure.abort)
    return fmt::format("{} called PMIx_Abort({}): {}", name, failure.abort->status, first_line(failure.abort->message));
  if (failure.hung) return fmt::format("{} hung for {:g} s and was killed", name, seconds(*failure.hung));
  if (!failure.end) return fmt::format("{} failed", name);
  if (failure.end->by_signal) return fmt::format("{} was ended by {}", name, base::signal_name(failure.end->code));
  return fmt::format("{} exited with {}", name, failure.end->code);
}

std::string summary(const JobOutcome& outcome) {
  switch (outcome.root_cause()) {
    case RootCause::node:
      return fmt::format("node {}: {}", outcome.nodes.front().host, first_line(outcome.nodes.front().message));
    case RootCause::stopped_rank: {
      const StoppedRank& stopped = outcome.stopped.front();
      return fmt::format("rank {} on {} had been stopped by {}", stopped.name.rank, stopped.name.host,
                         base::signal_name(stopped.signal));
    }
    case RootCause::rank: return summary(outcome.failures.front());
    case RootCause::signal: return fmt::format("ddprun received {}", base::signal_name(outcome.forwarded_signal));
    case RootCause::timeout: return "the time of --timeout has passed";
    case RootCause::unkillable: return plural(static_cast<int>(outcome.unkillable.size()), "rank") + " did not end";
    case RootCause::none: break;
  }
  return "nothing failed";
}

}  // namespace

std::string format_failure_report(const JobOutcome& outcome, const ReportContext& context) {
  if (outcome.success()) return {};
  if (outcome.failures.empty() && outcome.nodes.empty())
    return hang_lines(outcome, context.launcher) + stack_lines(outcome.stacks) + ended_line(outcome) +
           unkillable_lines(outcome) + silent_lines(outcome, context.launcher) +
           refusal_lines(outcome, context.launcher);

  if (const NodeFailure* failure = only_message(outcome, context))
    return fmt::format("ddprun: {}\n", failure->message) + unkillable_lines(outcome) +
           silent_lines(outcome, context.launcher) + refusal_lines(outcome, context.launcher);

  ReportLines lines;
  lines.border('=');
  lines.add("{} FAILED", context.program);
  if (const std::string job = job_line(context); !job.empty()) lines.add("{}", job);
  lines.border('-');
  add_failures(lines, outcome);
  add_generations(lines, context.generations);
  const std::string closing = closing_line(outcome, context.ended_by);
  const std::string end = end_line(outcome);
  if (!closing.empty() || !end.empty()) lines.border('-');
  if (!end.empty()) lines.add("{}", end);
  if (!closing.empty()) lines.add("{}", closing);
  lines.border('=');
  return lines.text() + hang_lines(outcome, context.launcher) + stack_lines(outcome.stacks) +
         unkillable_lines(outcome) + silent_lines(outcome, context.launcher) + refusal_lines(outcome, context.launcher);
}

std::string highlighted(std::string report) {
  constexpr std::string_view kHead = "\nRoot Cause";
  const std::size_t begin = report.find(kHead);
  if (begin == std::string::npos) return report;
  report.insert(report.find('\n', begin + 1), "\x1b[0m");
  report.insert(begin + 1, "\x1b[1;31m");
  return report;
}

std::string format_restart_line(const JobOutcome& outcome, int attempt, int restart, int max_restarts) {
  const std::string early = outcome.early.empty() ? "" : " (" + early_text(outcome.early, "that") + ")";
  return fmt::format("attempt {} failed: {}{}; restarting (restart {} of at most {})", attempt, summary(outcome), early,
                     restart, max_restarts);
}

std::string parked_text(const RosterChange& change) {
  return fmt::format("{} {}", fmt::join(change.parked, ", "),
                     change.parked.size() == 1 ? "waits as a spare" : "wait as spares");
}

std::string format_going_on_line(const JobOutcome& outcome, int generation, const RosterChange& change) {
  std::vector<std::string> causes;
  if (outcome.root_cause() != RootCause::none) causes.push_back(summary(outcome));
  if (!change.left.empty()) causes.push_back(fmt::format("{} left", fmt::join(change.left, ", ")));
  if (!change.parked.empty()) causes.push_back(parked_text(change));
  const bool only_joined = causes.empty() && !change.joined.empty();
  if (only_joined) causes.push_back(fmt::format("{} joined", fmt::join(change.joined, ", ")));
  if (causes.empty())
    causes.emplace_back(change.asked_by.empty() ? "the ranks asked to start again" : "the same nodes start again");
  if (!change.asked_by.empty()) causes.back() += fmt::format(", asked by {}", change.asked_by);
  std::string with;
  if (only_joined) {
    with = change.joined.size() == 1 ? " with it" : " with them";
  } else if (!change.joined.empty()) {
    with = fmt::format(" with {}", fmt::join(change.joined, ", "));
  }
  return fmt::format("{}; {} of {} {}{} (generation {}, no restart spent)", fmt::join(causes, "; "), change.survivors,
                     plural(change.before, "node"), change.survivors == 1 ? "continues" : "continue", with, generation);
}

}  // namespace ddp::launcher
