// A beat in an event loop: when to show life to others, and how long they have shown none.
#pragma once

#include <chrono>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

/// How ddprun's processes watch each other.
struct PeerLimits {
  std::chrono::milliseconds beat{1'000};           ///< between two signs of life
  std::chrono::milliseconds peer_timeout{30'000};  ///< DDP_PEER_TIMEOUT: who is silent that long is lost
  /// The same once the job ends, or an answer is due: more than a beat and the 2 s that a healthy process may stand.
  std::chrono::milliseconds answer{3'000};
  /// The same for an attempt process that has been told to kill its ranks or to end: less than the coordinator's
  /// patience (SupervisionLimits).
  std::chrono::milliseconds end_answer{2'000};

  /// After which silence to act, so that no more than the timeout passes.
  std::chrono::milliseconds silence() const { return peer_timeout - beat; }
};

/// Not thread-safe.
class Heartbeat {
 public:
  using Clock = Deadline::Clock;
  using Time = Clock::time_point;
  /// Work that keeps the loop waiting looks this often whether a beat is due.
  static constexpr std::chrono::milliseconds kPause{500};

  /// Calls @p on_beat in @p loop, which must outlive the object.
  Heartbeat(stream::EventLoop& loop, std::chrono::milliseconds interval, stream::EventLoop::Handler on_beat);
  Heartbeat& operator=(Heartbeat&&) = delete;
  ~Heartbeat();

  /// How long nothing has come from one that was last heard at @p heard. Time in which this process itself was stopped
  /// does not count: what others sent meanwhile has not been read.
  std::chrono::milliseconds silence(Time heard) const;
  /// When that will be @p limit, if nothing comes.
  Deadline silent_at(Time heard, std::chrono::milliseconds limit) const;
  /// How long this process itself has not run, until now or the last two beats; zero: it has.
  std::chrono::milliseconds own_pause() const;

  /// Whether it is time for a beat, for work that keeps the loop waiting. The loop leaves that beat out.
  bool take_beat();

 private:
  stream::EventLoop& loop_;
  std::chrono::milliseconds interval_;
  base::UniqueFd timer_;
  Time last_beat_ = Deadline::Clock::now();
  Time awake_since_ = last_beat_;
  std::chrono::milliseconds pause_{0};  ///< before that
};

}  // namespace ddp::launcher
