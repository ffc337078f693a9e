#include "diagnostics/metrics/watched_ranks.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/process.hpp"
#include "diagnostics/hang/proc_file.hpp"

namespace ddp::diagnostics {
namespace {

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

void WatchedRanks::begin(std::size_t count) {
  count_ = count;
  ranks_.clear();
}

void WatchedRanks::started(int rank, pid_t pid) {
  const auto [known, first] = ranks_.try_emplace(rank);
  if (first || known->second.probe) known->second.probe.emplace(pid);  // else its end was said before its beginning
}

void WatchedRanks::ended(int rank, int code, bool by_signal) {
  Rank& now = ranks_[rank];
  now.failed = by_signal || code != 0;
  now.probe.reset();
  ++exits_[by_signal ? std::pair{std::string{}, base::signal_name(code)}
                     : std::pair{std::to_string(code), std::string{}}];
}

void WatchedRanks::add_to(MetricsPage& page) {
  int running = 0, stopped = 0, ended = 0, failed = 0;
  for (auto& [rank, now] : ranks_) {
    const RankUse use = now.probe ? now.probe->look() : RankUse{};
    ++(now.failed ? failed : !now.probe ? ended : use.stopped ? stopped : running);
    add_rank(page, rank, use);
  }
  const auto known = static_cast<int>(ranks_.size());
  const std::pair<const char*, int> states[] = {{"starting", std::max(0, static_cast<int>(count_) - known)},
                                                {"running", running},
                                                {"stopped", stopped},
                                                {"ended", ended},
                                                {"failed", failed}};
  for (const auto& [state, number] : states) page.add(Metric::ranks, number, {{"state", state}});
  for (const auto& [end, number] : exits_)
    page.add(Metric::rank_exits, number, {{"code", end.first}, {"signal", end.second}});
}

std::vector<StepProgress> WatchedRanks::progress() {
  std::vector<StepProgress> all;
  for (auto& [rank, now] : ranks_) {
    if (!now.probe) continue;
    const RankUse use = now.probe->look();
    if (!use.flight || !use.flight->sums || use.flight->sums->steps == 0) continue;
    const flight::FlightView::Sums& sums = *use.flight->sums;
    all.push_back({.rank = rank,
                   .steps = static_cast<std::int64_t>(sums.steps),
                   .step_ns = nanoseconds(sums.step_s),
                   .communication_ns = nanoseconds(sums.communication_s),
                   .hidden_ns = nanoseconds(sums.hidden_s),
                   .straggler_rank = sums.straggler_rank,
                   .straggler_delay_ns = nanoseconds(sums.straggler_delay_s)});
  }
  return all;
}

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

void add_training(MetricsPage& page, const std::string& rank, const TrainingMetrics& training) {
  for (const TrainingSeries& series : training.series) {
    const MetricsPage::Label labels[] = {{"rank", rank}, {"type", series.type}, {"name", series.name}};
    for (std::size_t i = 0; i < series.quantiles_s.size(); ++i) {
      page.add(Metric::training_time, series.quantiles_s.at(i),
               {labels[0], labels[1], labels[2], {"quantile", TrainingSeries::kQuantiles.at(i)}});
    }
    page.add(Metric::training_time, series.sum_s, {labels[0], labels[1], labels[2]}, "_sum");
    page.add(Metric::training_time, static_cast<double>(series.count), {labels[0], labels[1], labels[2]}, "_count");
  }
  if (!training.series.empty() || training.refused > 0)
    page.add(Metric::training_refused, training.refused, {{"rank", rank}});
}

}  // namespace

void add_rank(MetricsPage& page, int rank, const RankUse& use) {
  const std::string name = std::to_string(rank);
  page.add(Metric::rank_running, use.processes > 0 ? 1 : 0, {{"rank", name}});
  if (use.processes == 0) return;
  page.add(Metric::rank_cpu, use.cpu_s, {{"rank", name}});
  page.add(Metric::rank_resident, static_cast<double>(use.resident_bytes), {{"rank", name}});
  page.add(Metric::rank_processes, use.processes, {{"rank", name}});
  add_training(page, name, use.training);
  if (!use.flight) return;
  add_operations(page, name, *use.flight);
  if (use.flight->sums) add_sums(page, name, *use.flight->sums);
}

namespace {

// A rank that starts thousands of processes shall not hold up whoever looks.
constexpr std::size_t kMostProcesses = 256;
// Which children a process has stands in a file of each of its threads, and PyTorch's ranks have a hundred: more than
// all the rest to read. Data loaders are started in the first seconds, or once an epoch.
constexpr std::chrono::seconds kLongestTreePause{60};
// Of processes without a flight recorder, all open files of all of them would be looked through each time. Programs
// that will have one have it soon.
constexpr std::chrono::seconds kLongestPause{30};
// A process may come to have a second recorder, with another copy of the library.
constexpr std::chrono::seconds kTrust{300};

}  // namespace

void RankProbe::find_processes() {
  if (!processes_.empty() && !tree_.expired()) return;
  tree_ = Deadline::after(tree_pause_);
  tree_pause_ = std::min(2 * tree_pause_, kLongestTreePause);
  processes_ = {{.pid = pid_, .start_ticks = 0}};
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    for (const pid_t child : read_children(proc_, processes_[i].pid)) {
      if (processes_.size() < kMostProcesses) processes_.push_back({.pid = child, .start_ticks = 0});
    }
  }
}

RankUse RankProbe::look() {
  RankUse use;
  find_processes();
  std::uint64_t ticks = 0;
  std::uint64_t pages = 0;
  std::vector<pid_t> living;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    Process& process = processes_[i];
    const ProcStat stat = read_stat(proc_, process.pid);
    if (i == 0 && (stat.state == 'X' || stat.state == 'Z')) return use;
    if (i == 0) use.stopped = stat.state == 'T';
    if (process.start_ticks == 0) process.start_ticks = stat.start_ticks;
    if (stat.state == 'X' || stat.start_ticks != process.start_ticks) continue;
    ++use.processes;
    living.push_back(process.pid);
    ticks += stat.ticks + stat.children_ticks;
    pages += stat.resident_pages;
  }
  cpu_s_ = std::max(cpu_s_, static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  use.cpu_s = cpu_s_;
  use.resident_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  use.training = training_.read(proc_, living);
  find_flight(use);
  return use;
}

void RankProbe::find_flight(RankUse& use) {
  const bool lives = std::any_of(processes_.begin(), processes_.end(),
                                 [&](const Process& process) { return process.pid == flight_pid_; });
  if (lives && window_) use.flight = window_->view();
  if (!use.flight && window_) {
    window_.reset();
    search_ = Deadline{Deadline::Clock::time_point{}};
  }
  if (!search_.expired()) return;
  search_ = Deadline::after(pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
  for (const Process& process : processes_) {
    auto window = flight::FlightWindow::open(proc_, process.pid);
    if (!window || !(use.flight = window->view())) continue;
    window_ = std::move(window);
    flight_pid_ = process.pid;
    search_ = Deadline::after(kTrust);
    break;
  }
}

}  // namespace ddp::diagnostics
