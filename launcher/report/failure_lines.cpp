// The rows of a report that are about one failed rank, or about several that failed alike.
#include "report/failure_lines.hpp"

#include <signal.h>

#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/process.hpp"
#include "outcome/error_file.hpp"
#include "report/report_lines.hpp"

namespace ddp::launcher {
namespace {

// Of the others.
constexpr std::size_t kOtherTracebackBytes = 2048;
constexpr std::string_view kRecordHint = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
constexpr std::string_view kNothing = "<N/A>";

void add_end(ReportLines& lines, const RankFailure& failure) {
  if (failure.end) {
    lines.field("exitcode", fmt::format("{} (pid: {})", failure.end->exit_status(), failure.name.pid));
    if (failure.end->by_signal) {
      lines.field("signal", fmt::format("{} ({}){}", base::signal_name(failure.end->code), failure.end->code,
                                        failure.end->core_dumped ? ", core dumped" : ""));
    }
  } else {
    lines.field("pid", fmt::format("{}", failure.name.pid));
  }
  if (failure.abort)
    lines.field("abort", fmt::format("PMIx_Abort({}): {}", failure.abort->status, failure.abort->message));
  if (failure.hung) {
    lines.field("hung",
                fmt::format("no progress for {:g} s, so ddprun killed it (--end-hung)", seconds(*failure.hung)));
  } else if (!failure.traces.oom.empty()) {
    lines.field("oom", failure.traces.oom);
  } else if (failure.end && failure.end->by_signal && failure.end->code == SIGKILL) {
    lines.field("oom", "no OOM kill was seen; 'dmesg' and 'sacct -j JOB' may show what sent SIGKILL");
  }
  if (!failure.traces.pmix_server.empty()) lines.field("pmix", failure.traces.pmix_server);
}

/// Python's commonest failure of all, with another interpreter than the user thinks.
bool lacks_module(const RankTraces& traces) {
  const auto says = [&](std::string_view words) {
    return traces.stderr_tail.find(words) != std::string::npos || traces.error_content.find(words) != std::string::npos;
  };
  return says("ModuleNotFoundError") || says("ImportError");
}

std::string_view without_newlines(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

/// What the console has already in one piece, or labelled, is not repeated.
bool shows_stderr(const RankTraces& traces, Extent extent) {
  const bool in_one_piece = traces.stderr_shown && (!extent.several || !traces.stderr_log.empty());
  return extent.first && !in_one_piece && !without_newlines(traces.stderr_tail).empty();
}

/// torchrun's text where there is no error file; else the end of the traceback in standard error.
std::string without_error_file(const RankFailure& failure, Extent extent) {
  if (failure.abort || !failure.end) return std::string{kNothing};  // the abort's message says it
  if (failure.end->by_signal) {
    return fmt::format("Signal {} ({}) received by PID {}", failure.end->code, base::signal_name(failure.end->code),
                       failure.name.pid);
  }
  const RankTraces& traces = failure.traces;
  if (const std::string_view exception = base::exception_line(traces.stderr_tail); !exception.empty()) {
    if (shows_stderr(traces, extent)) return "in stderr";
    return shortened(exception, kOtherTracebackBytes) + (traces.stderr_shown ? " (see above)" : "");
  }
  const bool unknown = traces.stderr_shown && traces.stderr_tail.empty();  // straight to a terminal
  return traces.python && !unknown ? std::string{kRecordHint} : std::string{kNothing};
}

void add_stderr(ReportLines& lines, std::string_view tail) {
  const auto count = std::count(tail.begin(), tail.end(), '\n') + 1;
  lines.field("stderr", count == 1 ? "last line" : fmt::format("last {} lines", count));
  lines.indented("    ", tail);
}

void add_logs(ReportLines& lines, const RankTraces& traces) {
  if (!traces.stdout_log.empty()) lines.field("stdout_log", traces.stdout_log);
  if (!traces.stderr_log.empty()) lines.field("stderr_log", traces.stderr_log);
}

/// What makes failures look alike to a reader: not who and where.
std::string looks_of(const RankFailure& failure) {
  const RankTraces& traces = failure.traces;
  std::string said = traces.error_content.empty() ? std::string(base::exception_line(traces.stderr_tail))
                                                  : parse_error_file(traces.error_content).message;
  if (said.empty()) {
    const std::string_view tail = without_newlines(traces.stderr_tail);
    said = tail.substr(tail.rfind('\n') + 1);
  }
  return fmt::format("{} {} {} {} {}", failure.end ? failure.end->exit_status() : -1,
                     failure.end && failure.end->by_signal, traces.oom, traces.interpreter, said);
}

}  // namespace

void add_head(ReportLines& lines, int number, std::chrono::system_clock::time_point time, const std::string& host) {
  lines.add("[{}]:", number);
  lines.field("time", fmt::format("{:%Y-%m-%d_%H:%M:%S}", fmt::localtime(std::chrono::system_clock::to_time_t(time))));
  if (!host.empty()) lines.field("host", host);
}

void add_rank(ReportLines& lines, const RankName& name) {
  lines.field("rank", fmt::format("{} (local_rank: {})", name.rank, name.local_rank));
}

void add_failure(ReportLines& lines, int number, const RankFailure& failure, Extent extent) {
  add_head(lines, number, failure.time, failure.name.host);
  add_rank(lines, failure.name);
  add_end(lines, failure);
  const RankTraces& traces = failure.traces;
  if (traces.python || !traces.error_file.empty() || !traces.error_content.empty())
    lines.field("error_file", traces.error_file.empty() ? "<N/A>" : traces.error_file);
  add_logs(lines, traces);
  if (!traces.interpreter.empty() && lacks_module(traces)) lines.field("python", traces.interpreter);
  bool has_traceback = false;
  if (traces.error_content.empty()) {
    const std::string text = without_error_file(failure, extent);
    // torchrun's rows for Python programs
    if (traces.python || !(text == kNothing || (failure.end && failure.end->by_signal))) lines.field("traceback", text);
  } else {
    const WorkerError error = parse_error_file(traces.error_content);
    has_traceback = !error.traceback.empty();
    lines.field("traceback", shortened(has_traceback ? error.traceback : error.message,
                                       extent.first ? kRootTracebackBytes : kOtherTracebackBytes));
  }
  if (!extent.first || has_traceback) return;
  const std::string_view tail = without_newlines(traces.stderr_tail);
  if (shows_stderr(traces, extent)) {
    add_stderr(lines, tail);
  } else if (!tail.empty() && base::exception_line(tail).empty()) {
    lines.field("stderr", fmt::format("{} (last line; see above)", tail.substr(tail.rfind('\n') + 1)));
  }
}

std::vector<RankFailure>::const_iterator end_of_equal_failures(std::vector<RankFailure>::const_iterator begin,
                                                               std::vector<RankFailure>::const_iterator end) {
  if (begin == end || begin->abort) return begin;
  const std::string looks = looks_of(*begin);
  return std::find_if(begin, end, [&](const RankFailure& each) { return each.abort || looks_of(each) != looks; });
}

void add_equal_failures(ReportLines& lines, int number, std::span<const RankFailure> failures) {
  std::vector<int> ranks;
  std::set<std::string> hosts;
  for (const RankFailure& each : failures) {
    ranks.push_back(each.name.rank);
    hosts.insert(each.name.host);
  }
  std::sort(ranks.begin(), ranks.end());
  const RankFailure& first = failures.front();
  add_head(lines, number, first.time, "");
  constexpr std::size_t kMostHosts = 8;
  lines.field(hosts.size() == 1 ? "host" : "hosts", hosts.size() > kMostHosts
                                                        ? fmt::format("{} hosts", hosts.size())
                                                        : fmt::format("{}", fmt::join(hosts, ", ")));
  std::string names = format_ranks(ranks);
  lines.field("ranks", names.substr(names.find(' ') + 1));
  add_end(lines, first);
  const RankTraces& traces = first.traces;
  add_logs(lines, traces);
  if (!traces.interpreter.empty() && lacks_module(traces)) lines.field("python", traces.interpreter);
  if (traces.error_content.empty()) {
    const std::string text = without_error_file(first, {});
    if (text != kNothing && !(first.end && first.end->by_signal)) lines.field("traceback", text);
  } else {
    lines.field("message", shortened(parse_error_file(traces.error_content).message, kOtherTracebackBytes));
  }
}

void add_named_ranks(ReportLines& lines, int number, const GroupVerdict& verdict) {
  lines.add("[{}]:", number);
  std::string names = format_ranks(verdict.ranks);
  lines.field(verdict.ranks.size() == 1 ? "rank" : "ranks", names.substr(names.find(' ') + 1));
  lines.field("end", "did not fail by itself; the errors below say what it did");
}

namespace {

using diagnostics::StackNote;

constexpr std::size_t kMostShown = 16;
constexpr std::size_t kMostBytes = 6144;
constexpr std::size_t kMostHosts = 8;

/// The main thread comes first, so that the rest is left out.
std::string first_lines(const std::string& text) {
  if (text.size() <= kMostBytes) return text;
  const std::size_t end = text.rfind('\n', kMostBytes);
  const std::size_t kept = end == std::string::npos ? kMostBytes : end;
  return fmt::format("{}\n... {} more bytes (--report-json has them)", text.substr(0, kept), text.size() - kept);
}

std::string hosts_of(const StackNote& note) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min(note.hosts.size(), kMostHosts));
  std::string text = fmt::format("{}", fmt::join(note.hosts.begin(), note.hosts.begin() + shown, ", "));
  if (note.hosts.size() > kMostHosts) text += fmt::format(" and {} more nodes", note.hosts.size() - kMostHosts);
  return text;
}

}  // namespace

std::string stack_lines(const diagnostics::RankStacks& stacks) {
  if (stacks.empty()) return {};
  ReportLines lines;
  lines.add("ddprun: where the ranks stood before they were ended:");
  const std::size_t shown = std::min(stacks.groups.size(), kMostShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const diagnostics::StackGroup& group = stacks.groups[i];
    lines.add("  {} ({}):", format_ranks(group.ranks), group.tool);
    lines.indented("    ", first_lines(group.text));
  }
  if (shown < stacks.groups.size())
    lines.add("  ... and {} more stacks (--report-json has all)", stacks.groups.size() - shown);
  for (const StackNote& note : stacks.notes) lines.add("  {}: {}", hosts_of(note), note.text);
  return lines.text();
}

}  // namespace ddp::launcher
