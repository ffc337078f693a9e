// Options on how the job ends: failures, restarts, time limits and signals.
#include <signal.h>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/process.hpp"
#include "options/option_groups.hpp"
#include "options/option_values.hpp"

namespace ddp::launcher {
namespace {

// Slurm kills what is left KillWait seconds (default 30) after its SIGTERM; ddprun must kill and report before.
constexpr std::chrono::seconds kSlurmShutdown{25};

/// For a rank that always fails, a million attempts are as good as no limit.
constexpr int kMaxRestarts = 1'000'000;

/// torchrun takes any number for its poll interval.
constexpr double kAnyInterval = kOneYear;

void settle_signals(OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  if (draft.ending) {
    for (const std::string& name : draft.ending->unknown)
      draft.notice(fmt::format("'{}' in --signals-to-handle is ignored: no such signal", printable(name)));
    for (const std::string& name : draft.ending->unusable)
      draft.notice(fmt::format("{} in --signals-to-handle is ignored: it cannot be forwarded", name));
  }
  options.ending_signals = draft.ending ? draft.ending->signals : std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  options.forwarded_signals = draft.forwarded ? draft.forwarded->signals : std::vector<int>{SIGUSR1, SIGUSR2};
  const auto in = [](const std::vector<int>& list, int signal) {
    return std::find(list.begin(), list.end(), signal) != list.end();
  };
  if (draft.ending && draft.forwarded) {
    for (const int signal : options.ending_signals) {
      if (in(options.forwarded_signals, signal))
        reject_combination(
            fmt::format("{} is in --signals-to-handle and in --forward-signals", base::signal_name(signal)),
            "the former end the job, the latter do not: remove it from one");
    }
  }
  // A list that was given overrides a default.
  if (draft.ending)
    std::erase_if(options.forwarded_signals, [&](int signal) { return in(options.ending_signals, signal); });
  else
    std::erase_if(options.ending_signals, [&](int signal) { return in(options.forwarded_signals, signal); });
}

}  // namespace

void add_failure_options(OptionTable& table, OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  table.begin_group("Failure");
  table
      .add_value("--max-restarts", "N", "How often to restart all ranks after a failure (default 0).",
                 [&](const auto& source, const auto& text) {
                   options.max_restarts = parse_whole(source, text, 0, kMaxRestarts);
                 })
      .torchrun();
  table.add_value("--failure-grace", "SECONDS",
                  "How long the other ranks may continue after the first failure, to report what they saw (default 2; "
                  "0 while restarts remain).",
                  [&](const auto& source, const auto& text) { options.failure_grace = parse_seconds(source, text); });
  table
      .add_value("--shutdown-timeout", "SECONDS",
                 "Time from SIGTERM to SIGKILL when the job is ended (default 30; 25 in a Slurm job, since Slurm kills "
                 "after 30).",
                 [&](const auto& source, const auto& text) { options.shutdown_timeout = parse_seconds(source, text); })
      .torchrun();
  table
      .add_value("--signals-to-handle", "NAMES",
                 "Signals to forward that end the job (default SIGTERM,SIGINT,SIGHUP,SIGQUIT).",
                 [&](const auto&, const auto& text) { draft.ending = read_signals(text); })
      .torchrun();
  table.add_value("--forward-signals", "NAMES", "Signals to forward while the job continues (default SIGUSR1,SIGUSR2).",
                  [&](const auto& source, const auto& text) {
                    draft.forwarded = read_signals(text);
                    for (const auto& name : draft.forwarded->unknown)
                      reject_value(source, name, "is not a signal", "give names as in SIGUSR1,SIGUSR2");
                    for (const auto& name : draft.forwarded->unusable)
                      reject_value(source, name, "cannot be forwarded", "leave it out");
                  });
  table.add_value(
      "--hang-report-after", "SECONDS",
      "Say who hangs once no rank has made progress for this time; the job goes on (default 300; 0: never).",
      [&](const auto& source, const auto& text) {
        const auto after = parse_seconds(source, text, kOneYear);
        options.hang_report_after = after > after.zero() ? std::optional{after} : std::nullopt;
      });
  table.add_flag("--torchrun-exit-codes", "Exit status 1 for every failure, as with torchrun.",
                 options.torchrun_exit_codes);
  table
      .add_value("--monitor-interval", "SECONDS",
                 "Ignored, for compatibility with torchrun: ddprun notices the end of a rank at once.",
                 [&](const auto& source, const auto& text) {
                   parse_seconds(source, text, kAnyInterval);
                   if (source.starts_with("--"))
                     draft.notice(fmt::format("{} is ignored: ddprun notices the end of a rank at once", source));
                 })
      .torchrun();
}

void settle_failure_options(const OptionTable& table, OptionDraft& draft, const base::Environment& environment) {
  constexpr const char* kShutdownVariable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  if (!table.said("--shutdown-timeout")) {
    if (const auto text = environment.raw(kShutdownVariable)) {
      draft.options.shutdown_timeout = parse_seconds(kShutdownVariable, *text);
    } else if (environment.has("SLURM_JOB_ID")) {
      draft.options.shutdown_timeout = kSlurmShutdown;
    }
  }
  settle_signals(draft);
}

std::vector<int> LaunchOptions::handled_signals() const {
  std::vector<int> signals = ending_signals;
  signals.insert(signals.end(), forwarded_signals.begin(), forwarded_signals.end());
  return signals;
}

}  // namespace ddp::launcher
