#include "agent/standby.hpp"

#include <poll.h>
#include <signal.h>

#include <array>
#include <cerrno>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "agent/rank_start.hpp"
#include "base/errors.hpp"
#include "base/log.hpp"
#include "workers/orphans.hpp"

namespace ddp::launcher {
namespace {

// For interpreters that were killed to end.
constexpr std::chrono::seconds kStandbyEndLimit{2};

std::vector<WarmRank> warm_ranks(const NodeJob& job, const control::PrepareAttempt& like) {
  const NodeRanks ranks = ranks_of_node(like.nodes, like.node_rank);
  const std::vector<topology::RankPlan> places = places_of_ranks(job, like);
  const EnvironmentMap inheritable = without_task_identity(job.environment.variables());
  std::vector<WarmRank> warm;
  for (int local = 0; local < ranks.num_ranks; ++local) {
    const RankStart start{.job = job,
                          .plan = like,
                          .ranks = ranks,
                          .place = places.at(static_cast<std::size_t>(local)),
                          .local_rank = local};
    const EnvironmentMap environment = rank_environment(start, inheritable, {}, {});
    warm.push_back({.request = rank_request(start, environment),
                    .variables = without_late_variables(environment),
                    .position = program_position(job.command).value()});
  }
  return warm;
}

std::unique_ptr<WarmWorkers> prepare_interpreters(const NodeJob& job, const control::PrepareAttempt& like, bool first) {
  return std::make_unique<WarmWorkers>(
      job.options.warm_workers, warm_ranks(job, like),
      WarmWorkers::Events{
          .ready =
              [&job](std::size_t local, pid_t pid) {
                if (job.options.verbose)
                  base::write_stderr_line(fmt::format(
                      "ddprun: {}: an interpreter for local rank {} of the next generation is ready; pid {}", job.host,
                      local, pid));
              },
          .not_imported =
              [&job, first](const std::string& failure) {
                if (first)
                  base::write_stderr_line(fmt::format("ddprun: warning: {}: --warm-workers: {}", job.host, failure));
              }});
}

/// Those that came before the plan were not for its ranks.
void forget_signals(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  const timespec no_time{};
  while (::sigtimedwait(&set, nullptr, &no_time) > 0) {
  }
}

}  // namespace

std::string no_warm_workers_because(const NodeJob& job, const control::PrepareAttempt& plan) {
  if (job.options.warm_workers.empty()) return {};
  if (!program_position(job.command)) return fmt::format("{} is not a Python program", job.command.display);
  if (!job.options.dump_env.empty()) return "with --dump-env, each rank starts anew";
  if (!plan.elastic && plan.max_restarts == 0 && job.options.spares == 0)
    return "without --max-restarts, no rank starts again";
  return {};
}

// ---- in the agent ----------------

bool Standby::wants(const control::PrepareAttempt& plan) const {
  const bool again = plan.elastic || plan.restart_count < plan.max_restarts || job_.options.spares > 0;
  return !job_.options.warm_workers.empty() && !job_.options.dry_run && again &&
         no_warm_workers_because(job_, plan).empty();
}

std::optional<AttemptProcess> Standby::take(const control::PrepareAttempt& plan) {
  due_.reset();
  wanted_ = wants(plan);
  if (wanted_) plan_ = plan;
  if (!process_) return std::nullopt;
  if (plan.console_window_bytes == 0) process_->console.reset();
  if (process_->process.end() || !process_->connection->open() ||
      (plan.console_window_bytes > 0 && !process_->console)) {
    drop();
    return std::nullopt;
  }
  process_->connection->send(plan);
  Process taken = *std::exchange(process_, std::nullopt);
  return AttemptProcess{.connection = taken.connection->release(),
                        .console = std::move(taken.console),
                        .process = std::move(taken.process)};
}

void Standby::ranks_started() {
  if (wanted_ && !process_) due_ = Deadline::after(delay_);
}

bool Standby::wanted_by_spare() const { return !job_.refusal && wants({.elastic = true}); }

void Standby::spare(const control::Hello& own, bool soon) {
  const control::NodeLayout here{
      .host = own.host,
      .nproc = own.nproc,
      .role = own.role,
      .addresses = own.addresses,
      .socket_interface = own.interfaces.empty() ? std::string{} : own.interfaces.front().name};
  plan_ = {.console_window_bytes = 1, .elastic = true, .nodes = {here, here}};
  wanted_ = wanted_by_spare();
  ranks_started();
  if (soon && due_) due_ = Deadline::after(std::chrono::seconds(0));
}

void Standby::time_passed() {
  if (!due_ || !due_->expired()) return;
  due_.reset();
  try {
    AttemptProcess started = start_(job_, plan_, std::exchange(first_, false));
    process_.emplace(Process{.connection = std::make_unique<LoopConnection>(
                                 loop_, std::move(started.connection),
                                 [this](const control::Message& message) {
                                   if (const auto* ready = std::get_if<control::WarmWorkersReady>(&message))
                                     ready_(*ready);
                                 },
                                 [this](const std::string&) { ready_({}); }),
                             .console = std::move(started.console),
                             .process = std::move(started.process)});
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddprun: warning: {}: no warm workers: {}", job_.host, error.what()));
    ready_({});
  }
}

void Standby::drop() {
  due_.reset();
  if (!process_) return;
  process_->connection->close(Deadline::after(std::chrono::seconds(0)));
  process_->process.wait(Deadline::after(kStandbyEndLimit));
  process_.reset();
}

// ---- in the process ----------------

std::optional<StandbyWork> stand_by(const NodeJob& job, const control::PrepareAttempt& like, bool first,
                                    control::Connection& agent) {
  become_subreaper();
  StandbyWork work;
  bool broken = false;
  bool told = false;
  const auto advance = [&] {
    try {
      if (!work.warm) work.warm = prepare_interpreters(job, like, first);
      work.warm->advance();
    } catch (const std::exception& error) {  // those that have been started are used
      broken = true;
      base::write_stderr_line(fmt::format("ddprun: warning: {}: no more warm workers: {}", job.host, error.what()));
    }
  };
  advance();
  for (;;) {
    if (!told && (broken || work.warm->fd() < 0)) {
      told = true;
      agent.send(control::WarmWorkersReady{.all = !broken});
    }
    std::array<pollfd, 2> entries{
        pollfd{.fd = agent.fd(), .events = POLLIN, .revents = 0},
        pollfd{.fd = work.warm && !broken ? work.warm->fd() : -1, .events = POLLIN, .revents = 0}};
    if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR)
      throw base::system_error("waiting for a plan", errno);
    if (entries[1].revents != 0) advance();
    if (entries[0].revents == 0) continue;
    for (control::Message& message : agent.receive()) {
      if (auto* const plan = std::get_if<control::PrepareAttempt>(&message))
        work.plan = std::move(*plan);
      else
        work.early.push_back(std::move(message));
    }
    if (!work.plan.nodes.empty()) {
      forget_signals(job.options.handled_signals());
      return work;
    }
    if (!agent.open()) return std::nullopt;
  }
}

}  // namespace ddp::launcher
