// Hands standard input on to rank 0 on another node, a piece at a time: the next one follows when rank 0 has read this
// one, so that what it does not read stays where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"
#include "events/event_loop.hpp"
#include "launch/input_source.hpp"

namespace ddp::launcher {

/// Runs in the caller's event loop: after each turn of it, call time_passed(). Not thread-safe.
class JobInput {
 public:
  using Send = std::function<void(const control::Input& piece)>;

  /// Reads @p fd once begin() has been called. @p loop must outlive the object. Throws Error(system).
  JobInput(EventLoop& loop, int fd, Send send);
  JobInput(const JobInput&) = delete;
  JobInput& operator=(const JobInput&) = delete;
  ~JobInput();

  /// Rank 0's node can take input. @param anew it is another node than before, which gets what rank 0 has not read
  void begin(bool anew);
  /// Rank 0 has read so many bytes more.
  void taken(std::int64_t bytes);

  std::optional<Deadline> next_deadline() const { return look_at_; }
  void time_passed();

 private:
  void look();
  void watch(bool wanted);

  EventLoop& loop_;
  InputSource source_;
  Send send_;
  std::size_t out_ = 0;  ///< sent, and not read by rank 0
  bool begun_ = false;
  bool ended_ = false;
  bool watched_ = false;
  std::optional<Deadline> look_at_;
};

}  // namespace ddp::launcher
