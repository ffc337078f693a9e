#include "agent/trace_gatherer.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include <ddp/error.hpp>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"

namespace ddp::launcher {
namespace {

void add_missing(RankTraces& traces, RankTraces more) {
  const auto fill = [](std::string& text, std::string& other) {
    if (text.empty()) text = std::move(other);
  };
  fill(traces.error_file, more.error_file);
  fill(traces.error_content, more.error_content);
  fill(traces.stderr_tail, more.stderr_tail);
  fill(traces.oom, more.oom);
  fill(traces.pmix_server, more.pmix_server);
}

}  // namespace

struct TraceGatherer::Job {
  int local_rank;
  RankTraces traces{};
  bool done = false;
  std::string failure{};
};

struct TraceGatherer::Shared {
  explicit Shared(Gather function) : gather(std::move(function)) {}
  void run();

  const Gather gather;
  base::WakeEvent ready;
  std::mutex mutex;  ///< for what follows, and for the jobs
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> jobs;
  bool running = false;
  bool closed = false;
};

void TraceGatherer::Shared::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return closed || !jobs.empty(); });
    if (closed) return;
    const std::shared_ptr<Job> job = std::move(jobs.front());
    jobs.pop_front();
    lock.unlock();
    try {
      gather(job->local_rank, [&](RankTraces more) {
        const std::lock_guard guard(mutex);
        add_missing(job->traces, std::move(more));
      });
    } catch (const std::exception& error) {
      base::log(base::LogLevel::warning, "reading what a failed rank left: {}", error.what());
    }
    lock.lock();
    job->done = true;
    ready.ring();
  }
}

TraceGatherer::TraceGatherer(Gather gather, std::chrono::milliseconds patience)
    : patience_(patience), shared_(std::make_shared<Shared>(std::move(gather))) {}

TraceGatherer::~TraceGatherer() {
  const std::lock_guard lock(shared_->mutex);
  shared_->closed = true;
  shared_->changed.notify_all();
}

int TraceGatherer::fd() const { return shared_->ready.fd(); }

void TraceGatherer::gather(control::RankEnded end) {
  auto job = std::make_shared<Job>(Job{.local_rank = end.local_rank});
  const std::lock_guard lock(shared_->mutex);
  try {
    if (!shared_->running) {
      base::start_thread([shared = shared_] { shared->run(); }).detach();
      shared_->running = true;
    }
    shared_->jobs.push_back(job);
    shared_->changed.notify_all();
  } catch (const Error& error) {
    job->failure = error.what();
    job->done = true;
    shared_->ready.ring();
  }
  waiting_.push_back({.end = std::move(end), .job = std::move(job), .limit = Deadline::after(patience_)});
}

std::optional<Deadline> TraceGatherer::next_deadline() const {
  return waiting_.empty() ? std::nullopt : std::optional{waiting_.front().limit};
}

std::vector<TraceGatherer::Gathered> TraceGatherer::take() {
  shared_->ready.clear();
  std::vector<Gathered> gathered;
  const std::lock_guard lock(shared_->mutex);
  while (!waiting_.empty() && (waiting_.front().job->done || waiting_.front().limit.expired())) {
    Waiting& first = waiting_.front();
    add_missing(first.end.traces, first.job->traces);
    gathered.push_back({.end = std::move(first.end), .late = !first.job->done, .failure = first.job->failure});
    waiting_.pop_front();
  }
  return gathered;
}

}  // namespace ddp::launcher
