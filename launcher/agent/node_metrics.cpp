#include "agent/node_metrics.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include <ddp/version.hpp>

#include "base/stderr_line.hpp"
#include "diagnostics/metrics/metrics_page.hpp"
#include "diagnostics/metrics/rank_metrics.hpp"
#include "outcome/signal_name.hpp"

namespace ddp::launcher {
namespace {

using diagnostics::Metric;

// By NodeMetrics::State.
constexpr std::array<const char*, 5> kStates{"starting", "running", "stopped", "ended", "failed"};

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

NodeMetrics::NodeMetrics(const NodeJob& job, EventLoop& loop) : job_(job), loop_(loop) {
  const MetricsOptions& options = job.options.metrics;
  if (!options.port || job.options.dry_run) return;
  endpoint_ = std::make_unique<diagnostics::MetricsEndpoint>(options.address, *options.port, [this] { return text(); });
  loop_.watch(endpoint_->fd(), [this] { endpoint_->serve(); });
  if (*options.port == 0 || job.options.verbose)
    base::write_stderr_line(fmt::format("ddprun: {}: metrics at {}", job.host, endpoint_->url()));
}

NodeMetrics::~NodeMetrics() {
  if (endpoint_) loop_.forget(endpoint_->fd());
}

void NodeMetrics::begin(const control::PrepareAttempt& plan) {
  const bool named = plan.log_name != RendezvousOptions{}.run_id && !plan.log_name.empty();
  job_name_ = named || plan.nodes.size() > 1 ? plan.log_name : fmt::format("pid-{}", ::getpid());
  layout_ = ranks_of_node(plan.nodes, plan.node_rank);
  num_nodes_ = plan.nodes.size();
  epoch_ = plan.epoch;
  restarts_ = plan.restart_count;
  max_restarts_ = plan.max_restarts;
  nodes_lost_ = plan.nodes_lost;
  interval_ = std::chrono::milliseconds{plan.progress_ms};
  started_at_ = 0;
  progress_at_.reset();
  ranks_.clear();
  ranks_.resize(static_cast<std::size_t>(layout_.num_ranks));
}

void NodeMetrics::note(const control::Message& message) {
  const auto known = [this](const auto& event) {
    return event.epoch == epoch_ && event.local_rank >= 0 && static_cast<std::size_t>(event.local_rank) < ranks_.size();
  };
  if (const auto* started = std::get_if<control::RanksStarted>(&message)) {
    if (!wanted() || started->epoch != epoch_) return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    started_at_ = std::chrono::duration<double>(now).count();
    if (interval_ > std::chrono::milliseconds{0}) progress_at_ = Deadline::after(interval_);
    for (std::size_t local = 0; local < std::min(ranks_.size(), started->pids.size()); ++local) {
      ranks_[local].state = State::running;
      ranks_[local].probe.emplace(static_cast<pid_t>(started->pids[local]));
    }
  } else if (const auto* ended = std::get_if<control::RankEnded>(&message); ended != nullptr && known(*ended)) {
    Rank& rank = ranks_[static_cast<std::size_t>(ended->local_rank)];
    rank.state = ended->end.success() ? State::ended : State::failed;
    rank.probe.reset();
    ++exits_[ended->end.by_signal ? std::pair{std::string{}, signal_name(ended->end.code)}
                                  : std::pair{std::to_string(ended->end.code), std::string{}}];
  } else if (const auto* stopped = std::get_if<control::RankStopped>(&message); stopped != nullptr && known(*stopped)) {
    Rank& rank = ranks_[static_cast<std::size_t>(stopped->local_rank)];
    if (rank.probe) rank.state = stopped->signal == 0 ? State::running : State::stopped;
  }
}

std::optional<control::Progress> NodeMetrics::progress_due() {
  if (!progress_at_ || !progress_at_->expired()) return std::nullopt;
  progress_at_ = Deadline::after(interval_);
  control::Progress progress{.epoch = epoch_};
  for (std::size_t local = 0; local < ranks_.size(); ++local) {
    if (!ranks_[local].probe) continue;
    const diagnostics::RankUse use = ranks_[local].probe->look();
    if (!use.flight || !use.flight->sums || use.flight->sums->steps == 0) continue;
    const flight::FlightView::Sums& sums = *use.flight->sums;
    progress.ranks.push_back({.rank = layout_.first_rank + static_cast<int>(local),
                              .steps = static_cast<std::int64_t>(sums.steps),
                              .step_ns = nanoseconds(sums.step_s),
                              .communication_ns = nanoseconds(sums.communication_s),
                              .hidden_ns = nanoseconds(sums.hidden_s),
                              .straggler_rank = sums.straggler_rank,
                              .straggler_delay_ns = nanoseconds(sums.straggler_delay_s)});
  }
  if (progress.ranks.empty()) return std::nullopt;
  return progress;
}

std::string NodeMetrics::text() {
  diagnostics::MetricsPage page(job_name_, job_.host);
  page.add(Metric::scrapes, ++answers_);
  page.add(Metric::build_info, 1, {{"version", DDP_VERSION_STRING}});
  page.add(Metric::job_info, 1, {{"program", job_.options.command.front()}});
  page.add(Metric::world_size, layout_.world_size);
  page.add(Metric::nodes, static_cast<double>(num_nodes_));
  page.add(Metric::attempts, epoch_ + 1);
  page.add(Metric::restarts, restarts_);
  page.add(Metric::max_restarts, max_restarts_);
  page.add(Metric::node_losses, nodes_lost_);
  if (started_at_ > 0) page.add(Metric::attempt_start, started_at_);
  std::array<int, kStates.size()> numbers{};
  for (const Rank& rank : ranks_) ++numbers.at(static_cast<std::size_t>(rank.state));
  for (std::size_t i = 0; i < kStates.size(); ++i) page.add(Metric::ranks, numbers.at(i), {{"state", kStates.at(i)}});
  for (const auto& [end, count] : exits_)
    page.add(Metric::rank_exits, count, {{"code", end.first}, {"signal", end.second}});
  for (std::size_t local = 0; local < ranks_.size(); ++local) {
    auto& probe = ranks_[local].probe;
    add_rank(page, layout_.first_rank + static_cast<int>(local), probe ? probe->look() : diagnostics::RankUse{});
  }
  return page.text();
}

}  // namespace ddp::launcher
