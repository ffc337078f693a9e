#include "agent/node_metrics.hpp"

#include <algorithm>
#include <utility>

#include <ddp/version.hpp>

#include "diagnostics/metrics/metrics_page.hpp"

namespace ddp::launcher {

using diagnostics::Metric;

NodeMetrics::NodeMetrics(Node node, stream::EventLoop& loop) : node_(std::move(node)), loop_(loop) {
  if (!node_.port) return;
  endpoint_ = std::make_unique<diagnostics::MetricsEndpoint>(node_.address, *node_.port, [this] { return text(); });
  loop_.watch(endpoint_->fd(), [this] { endpoint_->serve(); });
}

NodeMetrics::~NodeMetrics() {
  if (endpoint_) loop_.forget(endpoint_->fd());
}

void NodeMetrics::begin(Ranks ranks) {
  of_ = std::move(ranks);
  started_at_ = 0;
  progress_at_.reset();
  ranks_.begin(of_.numbers.size());
}

void NodeMetrics::note(const control::Message& message) {
  if (const auto* started = std::get_if<control::RanksStarted>(&message)) {
    if (!wanted() || started->epoch != of_.epoch) return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    started_at_ = std::chrono::duration<double>(now).count();
    if (of_.interval > std::chrono::milliseconds{0}) progress_at_ = Deadline::after(of_.interval);
    const std::size_t count = std::min(of_.numbers.size(), started->pids.size());
    for (std::size_t local = 0; local < count; ++local)
      ranks_.started(of_.numbers[local], static_cast<pid_t>(started->pids[local]));
  } else if (const auto* ended = std::get_if<control::RankEnded>(&message);
             ended != nullptr && ended->epoch == of_.epoch && ended->local_rank >= 0 &&
             static_cast<std::size_t>(ended->local_rank) < of_.numbers.size()) {
    ranks_.ended(of_.numbers[static_cast<std::size_t>(ended->local_rank)], ended->end.code, ended->end.by_signal);
  } else if (const auto* change = std::get_if<control::NodesChange>(&message);
             change != nullptr && change->epoch == of_.epoch) {
    of_.nodes_waiting = change->waiting;
  }
}

std::optional<control::Progress> NodeMetrics::progress_due() {
  if (!progress_at_ || !progress_at_->expired()) return std::nullopt;
  progress_at_ = Deadline::after(of_.interval);
  control::Progress progress{.epoch = of_.epoch, .ranks = ranks_.progress()};
  if (progress.ranks.empty()) return std::nullopt;
  return progress;
}

std::string NodeMetrics::text() {
  diagnostics::MetricsPage page(of_.job_name, node_.host);
  page.add(Metric::scrapes, ++answers_);
  page.add(Metric::build_info, 1, {{"version", DDP_VERSION_STRING}});
  page.add(Metric::job_info, 1, {{"program", node_.program}, {"user", diagnostics::user_name()}});
  page.add(Metric::world_size, of_.world_size);
  page.add(Metric::nodes, static_cast<double>(of_.num_nodes));
  page.add(Metric::nodes_waiting, of_.nodes_waiting);
  page.add(Metric::attempts, of_.epoch + 1);
  page.add(Metric::restarts, of_.restarts);
  page.add(Metric::max_restarts, of_.max_restarts);
  page.add(Metric::node_losses, of_.nodes_lost);
  if (started_at_ > 0) page.add(Metric::attempt_start, started_at_);
  ranks_.add_to(page);
  return page.text();
}

}  // namespace ddp::launcher
