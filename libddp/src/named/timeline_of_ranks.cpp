// How a timeline comes about: ranks record what they do with operations, and send it to rank 0 about once a second,
// while there is something to send. Rank 0 writes it.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/message.hpp"
#include "named/engine.hpp"

namespace ddp::named {
namespace {

constexpr std::chrono::seconds kBetweenWrites{1};
constexpr std::size_t kMostSpans = 16'384;  // of a message, which has their names
// For other ranks' last spans.
constexpr std::chrono::seconds kToSend{5};

std::int64_t microseconds(std::chrono::system_clock::duration time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}
std::int64_t clock_now() { return microseconds(std::chrono::system_clock::now().time_since_epoch()); }

}  // namespace

void Engine::start_timeline(const std::string& file, bool mark_exchanges, bool essential) {
  fork_guard_.check("starting a timeline");
  if (!coordinator_) return;
  stop_timeline();
  std::shared_ptr<Timeline> made;
  try {
    made = std::make_shared<Timeline>(file, mark_exchanges);
  } catch (const Error& error) {
    const Lock lock(mutex_);
    if (essential && !end_) {
      tell_end(lock, error);
      end_all(lock, error);
    }
    throw;
  }
  const Lock lock(mutex_);
  if (end_) throw Error{*end_};
  timeline_ = std::move(made);
  recorders_.insert(std::next(parent_.global_ranks().begin()), parent_.global_ranks().end());
  const Recording recording{.on = true, .now = clock_now()};
  const Bytes message = base::encode(FromCoordinator{recording});
  for (int rank = 1; rank < parent_.size(); ++rank) star_.send(rank, message);
  set_recording(lock, recording);
}

void Engine::stop_timeline() {
  fork_guard_.check("stopping a timeline");
  Lock lock(mutex_);
  if (!timeline_) return;
  const Recording recording{.on = false, .now = clock_now()};
  const Bytes message = base::encode(FromCoordinator{recording});
  for (int rank = 1; rank < parent_.size(); ++rank) star_.send(rank, message);
  changed_.wait_until(lock, Deadline::after(kToSend).when(), [this] { return recorders_.empty(); });
  set_recording(lock, recording);
  recorders_.clear();
  const auto ended = std::exchange(timeline_, nullptr);
  lock.unlock();
  if (ended) ended->write();
}

void Engine::set_recording(const Lock& lock, const Recording& recording) {
  if (recording.on) {
    to_epoch_ =
        std::chrono::system_clock::now().time_since_epoch() -
        std::chrono::duration_cast<std::chrono::system_clock::duration>(Deadline::Clock::now().time_since_epoch());
  }
  recording_ = recording.on;
  send_spans(lock, recording.now, !recording_);
}

void Engine::record(const Lock& lock, const Pending& pending, const StepTimes& times, bool fused, bool first) {
  if (!recording_) return;
  const auto at = [this](Pending::Time time) {
    if (time == Pending::Time{}) return std::int64_t{0};
    return microseconds(std::chrono::duration_cast<std::chrono::system_clock::duration>(time.time_since_epoch()) +
                        to_epoch_);
  };
  keep(lock, {.key = pending.subject->request.key,
              .submitted = at(pending.since),
              .agreed = at(times.agreed),
              .started = at(times.started),
              .packed = at(times.packed),
              .exchanged = at(times.exchanged),
              .done = at(Deadline::Clock::now()),
              .fused = fused,
              .first = first});
}

bool Engine::recording() {
  const Lock lock(mutex_);
  return recording_;
}

void Engine::record(std::string name, std::int64_t ready, std::int64_t started, std::int64_t done) {
  const Lock lock(mutex_);
  if (!recording_) return;
  name.resize(std::min(name.size(), kMostNameBytes));
  keep(lock, {.key = {.kind = Kind::all_reduce, .name = std::move(name)},
              .submitted = ready,
              .agreed = started,
              .started = started,
              .packed = started,
              .done = done});
}

void Engine::keep(const Lock& /*lock*/, Span span) {
  if (spans_.spans.size() >= kMostSpans) {
    ++spans_.dropped;
    return;
  }
  spans_.spans.push_back(std::move(span));
  const bool many = spans_.spans.size() == kMostSpans / 2;
  if (spans_due_ && !many) return;
  spans_due_ = many ? Deadline::after(std::chrono::milliseconds(0)) : Deadline::after(kBetweenWrites);
  star_.wake();
}

/// Of rank 0: for the file.
void Engine::send_spans(const Lock& lock, std::int64_t asked, bool last) {
  Spans spans = std::exchange(spans_, {});
  spans_due_.reset();
  spans.asked = asked;
  spans.now = clock_now();
  spans.last = last;
  coordinator_ ? take_spans(lock, own_, spans) : star_.send(0, base::encode(ToCoordinator{std::move(spans)}));
}

/// Of rank 0.
void Engine::take_spans(const Lock& /*lock*/, int rank, const Spans& spans) {
  if (!timeline_) return;
  if (rank != own_ && spans.asked != 0 && !spans.last) {
    timeline_->set_clock(rank, spans.asked, spans.now, clock_now());
  }
  timeline_->add(rank, spans.spans, spans.dropped);
  if (spans.last && recorders_.erase(rank) > 0) changed_.notify_all();
  if (!spans_due_) spans_due_ = Deadline::after(kBetweenWrites);
}

std::optional<Deadline> Engine::look_after_timeline() {
  std::shared_ptr<Timeline> written;
  std::optional<Deadline> next;
  {
    const Lock lock(mutex_);
    if (spans_due_ && spans_due_->expired()) {
      send_spans(lock, 0, false);
      spans_due_.reset();
      written = timeline_;
    }
    next = spans_due_;
  }
  if (written) written->write();
  return next;
}

}  // namespace ddp::named
