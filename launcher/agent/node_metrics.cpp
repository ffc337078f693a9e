#include "agent/node_metrics.hpp"

#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include <ddp/version.hpp>

#include "base/log.hpp"
#include "diagnostics/metrics/metrics_page.hpp"

namespace ddp::launcher {

using diagnostics::Metric;

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
  ranks_.begin(static_cast<std::size_t>(layout_.num_ranks));
}

void NodeMetrics::note(const control::Message& message) {
  if (const auto* started = std::get_if<control::RanksStarted>(&message)) {
    if (!wanted() || started->epoch != epoch_) return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    started_at_ = std::chrono::duration<double>(now).count();
    if (interval_ > std::chrono::milliseconds{0}) progress_at_ = Deadline::after(interval_);
    const int count = std::min(layout_.num_ranks, static_cast<int>(started->pids.size()));
    for (int local = 0; local < count; ++local)
      ranks_.started(layout_.first_rank + local, static_cast<pid_t>(started->pids[static_cast<std::size_t>(local)]));
  } else if (const auto* ended = std::get_if<control::RankEnded>(&message);
             ended != nullptr && ended->epoch == epoch_ && ended->local_rank >= 0 &&
             ended->local_rank < layout_.num_ranks) {
    ranks_.ended(layout_.first_rank + ended->local_rank, ended->end.code, ended->end.by_signal);
  }
}

std::optional<control::Progress> NodeMetrics::progress_due() {
  if (!progress_at_ || !progress_at_->expired()) return std::nullopt;
  progress_at_ = Deadline::after(interval_);
  control::Progress progress{.epoch = epoch_, .ranks = ranks_.progress()};
  if (progress.ranks.empty()) return std::nullopt;
  return progress;
}

std::string NodeMetrics::text() {
  diagnostics::MetricsPage page(job_name_, job_.host);
  page.add(Metric::scrapes, ++answers_);
  page.add(Metric::build_info, 1, {{"version", DDP_VERSION_STRING}});
  page.add(Metric::job_info, 1, {{"program", job_.options.command.front()}, {"user", diagnostics::user_name()}});
  page.add(Metric::world_size, layout_.world_size);
  page.add(Metric::nodes, static_cast<double>(num_nodes_));
  page.add(Metric::attempts, epoch_ + 1);
  page.add(Metric::restarts, restarts_);
  page.add(Metric::max_restarts, max_restarts_);
  page.add(Metric::node_losses, nodes_lost_);
  if (started_at_ > 0) page.add(Metric::attempt_start, started_at_);
  ranks_.add_to(page);
  return page.text();
}

}  // namespace ddp::launcher
