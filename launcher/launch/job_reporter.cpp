#include "launch/job_reporter.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "events/signal_inbox.hpp"
#include "outcome/error_file.hpp"
#include "report/failure_report.hpp"
#include "report/json_report.hpp"
#include "report/report_lines.hpp"

namespace ddp::launcher {
namespace {

void write_terminal(const std::string& text) noexcept {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::string counted(int number, const char* noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

}  // namespace

void StatusLine::show(const std::string& text) noexcept {
  if (!terminal_) return;
  write_terminal("\r\033[K" + text);  // ECMA-48: carriage return, erase to the end of the line
  shown_ = true;
}

void StatusLine::clear() noexcept {
  if (shown_) write_terminal("\r\033[K");
  shown_ = false;
}

std::string summary_line(int world_size, int num_nodes, std::chrono::milliseconds until_started,
                         std::chrono::milliseconds total) {
  return fmt::format("{} on {} succeeded after {:.1f} s (running after {:.2f} s)", counted(world_size, "rank"),
                     counted(num_nodes, "node"), seconds(total), seconds(until_started));
}

namespace {

std::chrono::milliseconds since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
}

}  // namespace

JobReporter::JobReporter(const LaunchOptions& options)
    : options_(options),
      status_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::system_clock::now()),
      steady_start_(std::chrono::steady_clock::now()) {}

void JobReporter::note(const std::string& text) {
  status_.clear();
  base::write_stderr_line(fmt::format("ddprun: {}", text));
}

void JobReporter::begin_event_log(const base::Environment& environment) {
  if (options_.event_log.empty() || options_.dry_run) return;
  event_log_.emplace("--event-log", options_.event_log,
                     EventLog::Job{.run_id = options_.rendezvous.run_id,
                                   .slurm_job_id = environment.raw("SLURM_JOB_ID").value_or(""),
                                   .program = options_.command.front(),
                                   .max_restarts = options_.max_restarts},
                     [this](const std::string& text) { note(text); });
}

void JobReporter::add_generation(GenerationReason reason, const JobOutcome& outcome, const RosterChange& change) {
  const auto now = std::chrono::system_clock::now();
  if (generations_.empty()) generations_.push_back({.reason = GenerationReason::start, .time = start_});
  GenerationFacts facts{.reason = reason, .change = change, .time = now};
  for (const NodeFailure& node : outcome.nodes) facts.lost.push_back(node.host);
  generations_.push_back(std::move(facts));
}

CoordinatorEvents JobReporter::events(const base::Environment& environment) {
  begin_event_log(environment);
  return {.detail =
              [this](const std::string& text) {
                if (options_.verbose) note(text);
              },
          .note = [this](const std::string& text) { note(text); },
          .joined =
              [this](int joined, int wanted) {
                if (event_log_) event_log_->node_joined(joined, wanted);
                if (wanted > 1) status_.show(fmt::format("ddprun: {} of {} nodes have joined", joined, wanted));
              },
          .started =
              [this](int started, int world_size, int num_nodes) {
                if (started < world_size) {
                  status_.show(
                      fmt::format("ddprun: {} of {} ranks on {} nodes are running", started, world_size, num_nodes));
                  return;
                }
                status_.clear();
                if (event_log_) event_log_->attempt_started(attempt_, world_size, num_nodes);
                if (until_started_ == std::chrono::milliseconds{0}) until_started_ = since(steady_start_);
              },
          .described = [this](const std::string& text) { description_ += text; },
          .progress =
              [this](int node, std::size_t nodes, const control::Progress& message) {
                const auto facts = progress_.add(node, nodes, message.epoch, message.ranks);
                if (facts && event_log_) event_log_->progress(attempt_, *facts);
              },
          .restarting =
              [this](const JobOutcome& outcome, int attempt, int restart) {
                attempt_ = attempt + 1;
                add_generation(GenerationReason::restart, outcome, {});
                if (event_log_) event_log_->restart(outcome, attempt, restart);
                note(format_restart_line(outcome, attempt, restart, options_.max_restarts));
              },
          .going_on =
              [this](const JobOutcome& outcome, int generation, const RosterChange& change) {
                attempt_ = generation;
                const auto reason = !outcome.nodes.empty()     ? GenerationReason::node_lost
                                    : !change.asked_by.empty() ? GenerationReason::resized
                                    : !change.left.empty()     ? GenerationReason::node_left
                                    : !change.joined.empty()   ? GenerationReason::node_joined
                                                               : GenerationReason::requested;
                add_generation(reason, outcome, change);
                if (event_log_) event_log_->generation_started(generation, generations_.back());
                note(format_going_on_line(outcome, generation, change));
              },
          .rank_ended =
              [this](int rank, const std::string& host, const RankEnd& end) {
                if (event_log_) event_log_->rank_ended(attempt_, rank, host, end);
              },
          .node_lost =
              [this](const NodeFailure& node) {
                if (event_log_) event_log_->node_lost(attempt_, node);
              }};
}

void JobReporter::report(const Coordinator& coordinator, const base::Environment& environment) {
  status_.clear();
  const JobOutcome& outcome = coordinator.outcome();
  const JobAttempt* last = coordinator.last_attempt();
  const ReportContext context{.program = options_.command.front(),
                              .attempt = last != nullptr ? last->epoch() : 0,
                              .restarts_used = coordinator.restarts_used(),
                              .max_restarts = options_.max_restarts,
                              .num_nodes = last != nullptr ? static_cast<int>(last->nodes().size()) : 0,
                              .world_size = last != nullptr ? last->world_size() : 0,
                              .generations = generations_};
  const JobTimes times{.start = start_, .until_started = until_started_, .total = since(steady_start_)};
  std::string text = format_failure_report(outcome, context);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  // Files first: they wait for no reader.
  if (event_log_) event_log_->job_ended(outcome, context.attempt, context.restarts_used, times.total);
  std::string flaw;
  try {
    if (!options_.report_json.empty())
      write_report_file(options_.report_json, format_json_report(outcome, context, times));
    const std::string outer = environment.raw("TORCHELASTIC_ERROR_FILE").value_or("");
    if (!outer.empty() && !outcome.failures.empty() && !outcome.failures.front().traces.error_content.empty())
      pass_on_error_file(outcome.failures.front().traces.error_content, outcome.exit_status(), outer);
  } catch (const std::exception& error) {
    flaw = error.what();
  }
  if (!description_.empty()) {
    base::write_text(STDOUT_FILENO, description_, base::kPagePatience, untaken(options_.ending_signals).get());
  }
  if (status_.terminal() && !environment.has("NO_COLOR")) text = highlighted(std::move(text));
  if (!text.empty()) {
    const auto stall =
        std::clamp<std::chrono::milliseconds>(coordinator.drain_time() / 2, base::kLinePatience, control::kStallLimit);
    base::write_stderr_line(text, stall, untaken(options_.ending_signals).get());
  }
  if (outcome.success() && status_.terminal()) {
    note(summary_line(context.world_size, context.num_nodes, times.until_started, times.total));
  }
  if (!flaw.empty()) note(flaw);
}

}  // namespace ddp::launcher
