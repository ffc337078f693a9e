#include "report/failure_report.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "report/signal_name.hpp"

namespace ddp::launcher {
namespace {

// torchrun's borders are as wide as the longest line, at most this.
constexpr std::size_t kWidestBorder = 60;

double seconds(std::chrono::milliseconds duration) { return std::chrono::duration<double>(duration).count(); }

std::string local_time(std::chrono::system_clock::time_point time) {
  return fmt::format("{:%Y-%m-%d_%H:%M:%S}", fmt::localtime(std::chrono::system_clock::to_time_t(time)));
}

std::string plural(int count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// The lines of a report, and its borders.
class Lines {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  void border(char symbol) { lines_.emplace_back(1, symbol), borders_.push_back(lines_.size() - 1); }

  std::string text() {
    std::size_t width = 0;
    for (const std::string& line : lines_) width = std::max(width, line.size());
    for (const std::size_t index : borders_)
      lines_[index].assign(std::min(width, kWidestBorder), lines_[index].front());
    std::string all;
    for (const std::string& line : lines_) all += line + "\n";
    return all;
  }

 private:
  std::vector<std::string> lines_;
  std::vector<std::size_t> borders_;
};

void add_place(Lines& lines, const RankName& name, std::chrono::system_clock::time_point time,
               const std::string& host) {
  lines.add("  time      : {}", local_time(time));
  lines.add("  host      : {}", host);
  lines.add("  rank      : {} (local_rank: {})", name.rank, name.local_rank);
}

void add_failure(Lines& lines, int number, const RankFailure& failure, const std::string& host) {
  lines.add("[{}]:", number);
  add_place(lines, failure.name, failure.time, host);
  if (failure.end) {
    lines.add("  exitcode  : {} (pid: {})", failure.end->exit_status(), failure.name.pid);
    if (failure.end->by_signal) {
      lines.add("  signal    : {} ({}){}", signal_name(failure.end->code), failure.end->code,
                failure.end->core_dumped ? ", core dumped" : "");
    }
  } else {
    lines.add("  pid       : {}", failure.name.pid);
  }
  if (failure.abort) lines.add("  abort     : PMIx_Abort({}): {}", failure.abort->status, failure.abort->message);
}

void add_stopped(Lines& lines, int number, const StoppedRank& stopped, const std::string& host) {
  lines.add("[{}]:", number);
  add_place(lines, stopped.name, stopped.time, host);
  lines.add("  pid       : {}", stopped.name.pid);
  lines.add("  stopped   : rank {} was stopped by {} {:.1f} s before the first failure and did not go on",
            stopped.name.rank, signal_name(stopped.signal), seconds(stopped.before_failure));
}

std::string closing_line(const JobOutcome& outcome) {
  const int ended = outcome.ended_on_request + outcome.killed;
  std::string line = fmt::format("{} {} ended by ddprun", plural(ended, "other rank"), ended == 1 ? "was" : "were");
  if (outcome.killed > 0) line += fmt::format(", {} of them by SIGKILL", outcome.killed);
  return line + ".";
}

std::string unkillable_lines(const JobOutcome& outcome) {
  std::string text;
  for (const RankName& name : outcome.unkillable) {
    text +=
        fmt::format("ddprun: rank {} (pid {}) did not end even after SIGKILL; does its disk or device still answer?\n",
                    name.rank, name.pid);
  }
  return text;
}

}  // namespace

std::string format_failure_report(const JobOutcome& outcome, const ReportContext& context) {
  if (outcome.success()) return {};
  if (outcome.failures.empty()) {
    std::string text;
    if (outcome.forwarded_signal != 0) {
      text = fmt::format("ddprun: ended by {}: passed on to all ranks; {} ended after it",
                         signal_name(outcome.forwarded_signal), plural(outcome.ended_on_request, "rank"));
      if (outcome.killed > 0) text += fmt::format(", {} had to be killed", outcome.killed);
      text += "\n";
    }
    return text + unkillable_lines(outcome);
  }

  Lines lines;
  int number = 0;
  lines.border('=');
  lines.add("{} FAILED", context.program);
  lines.border('-');
  auto others = outcome.failures.begin();
  if (outcome.stopped.empty()) {
    lines.add("Root Cause (first observed failure):");
    add_failure(lines, number++, *others++, context.host);
  } else {
    lines.add("Root Cause (stopped before the first failure):");
    for (const StoppedRank& stopped : outcome.stopped) add_stopped(lines, number++, stopped, context.host);
  }
  lines.border('-');
  lines.add("Other Failures:");
  if (others == outcome.failures.end()) lines.add("  <NO_OTHER_FAILURES>");
  for (; others != outcome.failures.end(); ++others) add_failure(lines, number++, *others, context.host);
  if (outcome.ended_on_request + outcome.killed > 0) {
    lines.border('-');
    lines.add("{}", closing_line(outcome));
  }
  lines.border('=');
  return lines.text() + unkillable_lines(outcome);
}

}  // namespace ddp::launcher
