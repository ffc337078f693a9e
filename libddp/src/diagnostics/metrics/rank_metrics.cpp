#include "diagnostics/metrics/rank_metrics.hpp"

#include <algorithm>
#include <string>

namespace ddp::diagnostics {
namespace {

using flight::FlightView;

// A program may make groups without end; the first ones are the world and those of its model.
constexpr std::size_t kMostGroups = 8;

void add_operations(MetricsPage& page, const std::string& rank, const FlightView& flight) {
  page.add(Metric::rank_phase, static_cast<double>(flight.phase), {{"rank", rank}});
  page.add(Metric::operations, static_cast<double>(flight.recorded), {{"rank", rank}});
  for (std::size_t i = 0; i < std::min(flight.groups.size(), kMostGroups); ++i) {
    page.add(Metric::last_operation, static_cast<double>(flight.groups[i].last_queued),
             {{"rank", rank}, {"group", flight.groups[i].name}});
  }
  if (flight.last) page.add(Metric::last_operation_age, flight.last->age_s, {{"rank", rank}});
  double oldest = 0;
  for (const FlightView::Call& call : flight.unfinished) oldest = std::max(oldest, call.age_s);
  page.add(Metric::operations_pending, static_cast<double>(flight.unfinished.size()), {{"rank", rank}});
  page.add(Metric::oldest_operation_age, oldest, {{"rank", rank}});
}

void add_sums(MetricsPage& page, const std::string& rank, const FlightView::Sums& sums) {
  page.add(Metric::operation_bytes, static_cast<double>(sums.operation_bytes), {{"rank", rank}});
  if (sums.steps == 0) return;
  page.add(Metric::steps, static_cast<double>(sums.steps), {{"rank", rank}});
  page.add(Metric::step_time, sums.step_s, {{"rank", rank}});
  page.add(Metric::last_step, sums.last_step_s, {{"rank", rank}});
  page.add(Metric::last_step_age, sums.last_step_age_s, {{"rank", rank}});
  if (sums.communication_s > 0) {
    page.add(Metric::communication_time, sums.communication_s, {{"rank", rank}});
    page.add(Metric::hidden_time, sums.hidden_s, {{"rank", rank}});
    page.add(Metric::hidden_ratio, std::min(1.0, sums.hidden_s / sums.communication_s), {{"rank", rank}});
  }
  if (sums.straggler_rank < 0) return;
  page.add(Metric::straggler_rank, sums.straggler_rank, {{"rank", rank}});
  page.add(Metric::straggler_delay, sums.straggler_delay_s, {{"rank", rank}});
}

}  // namespace

void add_rank(MetricsPage& page, int rank, const RankUse& use) {
  const std::string name = std::to_string(rank);
  page.add(Metric::rank_running, use.processes > 0 ? 1 : 0, {{"rank", name}});
  if (use.processes == 0) return;
  page.add(Metric::rank_cpu, use.cpu_s, {{"rank", name}});
  page.add(Metric::rank_resident, static_cast<double>(use.resident_bytes), {{"rank", name}});
  page.add(Metric::rank_processes, use.processes, {{"rank", name}});
  if (!use.flight) return;
  add_operations(page, name, *use.flight);
  if (use.flight->sums) add_sums(page, name, *use.flight->sums);
}

}  // namespace ddp::diagnostics
