// Names of signals as the C library knows them.
#include "options/failure_options.hpp"

#include <signal.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/process.hpp"
#include "cli/option_values.hpp"
#include "options/option_groups.hpp"

namespace ddp::launcher {
namespace {

/// "RTMIN+3" is 3 after @p base, "RTMAX-1" 1 before it.
std::optional<int> real_time_number(std::string_view name) {
  const bool from_min = name.starts_with("RTMIN");
  if (!from_min && !name.starts_with("RTMAX")) return std::nullopt;
  const int base = from_min ? SIGRTMIN : SIGRTMAX;
  std::string_view rest = name.substr(5);
  if (rest.empty()) return base;
  if (rest.front() != (from_min ? '+' : '-')) return std::nullopt;
  rest.remove_prefix(1);
  unsigned offset = 0;
  const auto [end, status] = std::from_chars(rest.data(), rest.data() + rest.size(), offset);
  if (status != std::errc{} || end != rest.data() + rest.size()) return std::nullopt;
  if (offset > static_cast<unsigned>(SIGRTMAX - SIGRTMIN)) return std::nullopt;
  return from_min ? base + static_cast<int>(offset) : base - static_cast<int>(offset);
}

}  // namespace

std::optional<int> signal_number(std::string_view name) {
  std::string upper{name};
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string_view word = upper;
  if (word.starts_with("SIG")) word.remove_prefix(3);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    const char* known = sigabbrev_np(signal);
    if (known != nullptr && word == known) return signal;
  }
  return real_time_number(word);
}

bool can_be_passed_on(int signal) {
  switch (signal) {
    case SIGKILL:
    case SIGSTOP:  // cannot be received
    case SIGCHLD:  // a rank has ended
    case SIGPIPE:  // ignored: see SignalInbox
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:  // faults of ddprun itself
    case SIGABRT: return false;
    default: return true;
  }
}

SignalList read_signals(std::string_view text) {
  SignalList list;
  for (const std::string_view name : cli::parts_of(text, ',')) {
    if (name.empty()) continue;
    const auto signal = signal_number(name);
    if (!signal) {
      list.unknown.emplace_back(name);
    } else if (!can_be_passed_on(*signal)) {
      list.unusable.emplace_back(name);
    } else if (std::find(list.signals.begin(), list.signals.end(), *signal) == list.signals.end()) {
      list.signals.push_back(*signal);
    }
  }
  return list;
}

// Options on how the job ends: failures, restarts, time limits and signals.

namespace {

// Slurm kills what is left KillWait seconds (default 30) after its SIGTERM; ddprun must kill and report before.
constexpr std::chrono::seconds kSlurmShutdown{25};

/// For a rank that always fails, a million attempts are as good as no limit.
constexpr int kMaxRestarts = 1'000'000;

/// torchrun takes any number for its poll interval.
constexpr double kAnyInterval = cli::kOneYear;

void settle_signals(OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  if (draft.ending) {
    for (const std::string& name : draft.ending->unknown)
      draft.notice(fmt::format("'{}' in --signals-to-handle is ignored: no such signal", cli::printable(name)));
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
        cli::reject_combination(
            fmt::format("{} is in --signals-to-handle and in --forward-signals", base::signal_name(signal)),
            "remove it from one: signals to handle end the job, signals to forward do not");
    }
  }
  // A list that was given overrides a default.
  if (draft.ending)
    std::erase_if(options.forwarded_signals, [&](int signal) { return in(options.ending_signals, signal); });
  else
    std::erase_if(options.ending_signals, [&](int signal) { return in(options.forwarded_signals, signal); });
}

/// "stop", "finish", "signal" or "signal=USR2".
void read_on_resize(ResizeManner& manner, const std::string& source, const std::string& text) {
  using How = ResizeManner::How;
  constexpr std::string_view kNamed = "signal=";
  manner.signal = 0;
  if (text == "stop" || text == "finish") {
    manner.how = text == "stop" ? How::stop : How::finish;
    return;
  }
  manner.how = How::signal;
  manner.signal = SIGUSR1;
  if (text == "signal") return;
  const bool named = text.starts_with(kNamed);
  const auto signal = named ? signal_number(std::string_view(text).substr(kNamed.size())) : std::nullopt;
  if (!signal || !can_be_passed_on(*signal))
    cli::reject_value(source, text, named ? "names no signal that ranks can handle" : "is not known",
                      "give stop, signal, signal=USR2 or finish");
  manner.signal = *signal;
}

/// Names of Python modules, as "torch,numpy.linalg".
std::string read_modules(const std::string& source, const std::string& text) {
  if (text.empty()) return "torch,torch._dynamo";  // DistributedDataParallel imports the second, for 1 s
  for (const std::string_view name : cli::parts_of(text, ',')) {
    for (const std::string_view part : cli::parts_of(name, '.')) {
      const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c >= 0x80; };
      if (part.empty() || std::isdigit(static_cast<unsigned char>(part.front())) != 0 ||
          !std::all_of(part.begin(), part.end(), is_letter))
        cli::reject_value(source, text, "names no modules", "give names as in torch,numpy");
    }
  }
  return text;
}

CrashLoopLimit read_crash_loop(const std::string& source, const std::string& text) {
  if (text == "0") return {.generations = 0};
  const auto colon = text.find(':');
  if (colon == std::string::npos) cli::reject_value(source, text, "is not N:SECONDS", "give 3:60, or 0 for no limit");
  return {.generations = cli::parse_whole(source, text.substr(0, colon), 0, kMaxRestarts),
          .within = cli::parse_positive_seconds(source, text.substr(colon + 1), cli::kOneYear)};
}

/// What all nodes must mean alike, where they say it.
void settle_elastic_settings(const OptionTable& table, LaunchOptions& options) {
  using How = ResizeManner::How;
  const ResizeManner& resize = options.resize;
  const auto seconds = [](std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); };
  const std::string how = resize.how == How::stop     ? "stop"
                          : resize.how == How::finish ? "finish"
                                                      : fmt::format("signal={}", base::signal_name(resize.signal));
  const CrashLoopLimit& loop = options.crash_loop;
  const std::string limit = loop.generations == 0 ? "0" : fmt::format("{}:{}", loop.generations, seconds(loop.within));
  options.elastic_settings = {fmt::format("--on-resize={}", how),
                              fmt::format("--resize-grace={}", seconds(resize.grace)),
                              fmt::format("--crash-loop={}", limit)};
  for (const std::string& setting : options.elastic_settings) {
    if (table.given(setting.substr(0, setting.find('=')))) options.given_settings.push_back(setting);
  }
}

/// On the next start of the ranks, for whatever reason.
void add_next_start_options(OptionTable& table, LaunchOptions& options) {
  table.add_value(
      "--crash-loop", "N:SECONDS",
      "With --nnodes MIN:MAX: end the job once N attempts in a row have lost a node, or were ended by restart_here(), "
      "within SECONDS of their start (default 3:60; 0: never).",
      [&](const auto& source, const auto& text) { options.crash_loop = read_crash_loop(source, text); });
  table
      .add_value("--on-resize", "HOW",
                 "With --nnodes MIN:MAX: how ranks end when nodes join or leave. stop (default): SIGTERM. signal, or "
                 "signal=USR2: SIGUSR1, or that signal. finish: by themselves, once libddp.elastic.change_pending() is "
                 "true.",
                 [&](const auto& source, const auto& text) { read_on_resize(options.resize, source, text); })
      .choices({"stop", "signal", "finish"});
  table.add_value("--resize-grace", "SECONDS",
                  "With --on-resize signal and finish: time from the signal, a node's leave or the end of the first "
                  "rank to SIGTERM (default 120).",
                  [&](const auto& source, const auto& text) {
                    options.resize.grace = cli::parse_seconds(source, text, cli::kOneYear);
                  });
  table
      .add_value(
          "--warm-workers", "MODULES",
          "Python programs: while the ranks run, start an interpreter for each rank of the next start and import "
          "these modules (default torch,torch._dynamo), so that a restart needs not.",
          [&](const auto& source, const auto& text) { options.warm_workers = read_modules(source, text); })
      .optional_value();
}

}  // namespace

void add_failure_options(OptionTable& table, OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  table.begin_group("Failure");
  table
      .add_value("--max-restarts", "N", "How often to restart all ranks after a failure (default 0).",
                 [&](const auto& source, const auto& text) {
                   options.max_restarts = cli::parse_whole(source, text, 0, kMaxRestarts);
                 })
      .torchrun();
  add_next_start_options(table, options);
  table.add_value(
      "--failure-grace", "SECONDS",
      "How long the other ranks may continue after the first failure, to report what they saw (default 2; "
      "0 while restarts remain).",
      [&](const auto& source, const auto& text) { options.failure_grace = cli::parse_seconds(source, text); });
  table
      .add_value(
          "--shutdown-timeout", "SECONDS",
          "Time from SIGTERM to SIGKILL when the job is ended (default 30; 25 in a Slurm job, since Slurm kills "
          "after 30).",
          [&](const auto& source, const auto& text) { options.shutdown_timeout = cli::parse_seconds(source, text); })
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
                      cli::reject_value(source, name, "is not a signal", "give names as in SIGUSR1,SIGUSR2");
                    for (const auto& name : draft.forwarded->unusable)
                      cli::reject_value(source, name, "cannot be forwarded", "leave it out");
                  });
  table.add_value("--hang-report-after", "SECONDS",
                  "Report which rank hangs once no rank has made progress for this long; the job continues (default "
                  "300; 0: never).",
                  [&](const auto& source, const auto& text) {
                    const auto after = cli::parse_seconds(source, text, cli::kOneYear);
                    options.hang_report_after = after > after.zero() ? std::optional{after} : std::nullopt;
                  });
  table.add_value("--end-hung", "SECONDS",
                  "Kill the rank that hangs once no rank has made progress for this long, as a failure that "
                  "--max-restarts covers (default 0: never).",
                  [&](const auto& source, const auto& text) {
                    const auto after = cli::parse_seconds(source, text, cli::kOneYear);
                    options.end_hung = after > after.zero() ? std::optional{after} : std::nullopt;
                  });
  table.add_flag("--torchrun-exit-codes", "Exit status 1 for every failure, as with torchrun.",
                 options.torchrun_exit_codes);
  table
      .add_value("--monitor-interval", "SECONDS",
                 "Ignored, for compatibility with torchrun: ddprun notices the end of a rank at once.",
                 [&](const auto& source, const auto& text) {
                   cli::parse_seconds(source, text, kAnyInterval);
                   if (source.starts_with("--"))
                     draft.notice(fmt::format("{} is ignored: ddprun notices the end of a rank at once", source));
                 })
      .torchrun();
}

void settle_failure_options(const OptionTable& table, OptionDraft& draft, const base::Environment& environment) {
  constexpr const char* kShutdownVariable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  if (!table.said("--shutdown-timeout")) {
    if (const auto text = environment.raw(kShutdownVariable)) {
      draft.options.shutdown_timeout = cli::parse_seconds(kShutdownVariable, *text);
    } else if (environment.has("SLURM_JOB_ID")) {
      draft.options.shutdown_timeout = kSlurmShutdown;
    }
  }
  settle_signals(draft);
  settle_elastic_settings(table, draft.options);
}

std::vector<int> LaunchOptions::handled_signals() const {
  std::vector<int> signals = ending_signals;
  signals.insert(signals.end(), forwarded_signals.begin(), forwarded_signals.end());
  return signals;
}

}  // namespace ddp::launcher
