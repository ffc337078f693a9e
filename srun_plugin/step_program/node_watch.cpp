#include "step_program/node_watch.hpp"

#include <sys/wait.h>

#include <utility>

#include <ddp/version.hpp>

#include "diagnostics/metrics/metrics_page.hpp"

namespace ddp::srun_plugin {

using diagnostics::Metric;

NodeWatch::NodeWatch(WatchedNode node) : node_(std::move(node)) {
  ranks_.begin(node_.local_tasks);
  if (!node_.metrics_port) return;
  endpoint_ = std::make_unique<diagnostics::MetricsEndpoint>(node_.metrics_address, *node_.metrics_port,
                                                             [this] { return text(); });
}

std::string NodeWatch::chosen_url() const { return node_.metrics_port == 0 ? endpoint_->url() : std::string{}; }

void NodeWatch::started(int rank, pid_t pid) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  if (started_at_ == 0) started_at_ = std::chrono::duration<double>(now).count();
  ranks_.started(rank, pid);
  if (++started_ == node_.local_tasks && node_.report_interval > std::chrono::milliseconds{0})
    due_ = Deadline::after(std::chrono::milliseconds{0});  // that all have begun
}

void NodeWatch::ended(int rank, int status) {
  const bool by_signal = WIFSIGNALED(status);
  ranks_.ended(rank, by_signal ? WTERMSIG(status) : WEXITSTATUS(status), by_signal);
}

NodeReport NodeWatch::report() {
  due_ = Deadline::after(node_.report_interval);
  if (++reports_ == 1) return {.number = 1};
  return {.number = reports_, .ranks = ranks_.progress()};
}

std::string NodeWatch::text() {
  diagnostics::MetricsPage page(node_.step, node_.node);
  page.add(Metric::scrapes, ++answers_);
  page.add(Metric::build_info, 1, {{"version", DDP_VERSION_STRING}});
  page.add(Metric::job_info, 1, {{"program", node_.program}, {"user", diagnostics::user_name()}});
  page.add(Metric::world_size, node_.world_size);
  page.add(Metric::nodes, node_.num_nodes);
  page.add(Metric::attempts, 1);
  page.add(Metric::restarts, 0);
  page.add(Metric::max_restarts, 0);
  if (started_at_ > 0) page.add(Metric::attempt_start, started_at_);
  ranks_.add_to(page);
  return page.text();
}

}  // namespace ddp::srun_plugin
