// Keeps processes that say nothing, and other users' processes, away from the PMIx server. libpmix listens on
// 127.0.0.1, believes the user id that a client sends, and reads a new client's first message without a deadline on the
// thread that serves all ranks: any process of the host could stop a job by connecting and saying nothing. libpmix has
// no hook before that.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <list>
#include <mutex>
#include <thread>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// While it lives, accept(2) in this process gives out only connections of its own user whose whole first message has
/// arrived. Others are closed: those of other users at once, the silent and the slow after the patience, the oldest
/// where too many say nothing. It never blocks, and a thread of the guard's own watches those that are not complete.
/// ddprun itself uses accept4(2): accept(2) is libpmix's call, in the place of which the linker puts ours.
///
/// One per process, which outlives the library's use of its listening socket. Thread-safe.
class AcceptGuard {
 public:
  static constexpr std::chrono::milliseconds kPatience{5'000};
  static constexpr std::size_t kMostIncomplete = 256;

  /// Throws Error(system).
  explicit AcceptGuard(std::chrono::milliseconds patience = kPatience);
  AcceptGuard(const AcceptGuard&) = delete;
  AcceptGuard& operator=(const AcceptGuard&) = delete;
  ~AcceptGuard();

  /// As accept(2) of a listening socket that does not block. All that may be tried again is EAGAIN: libpmix gives up
  /// its listening socket for any other error.
  int accept(int listening, sockaddr* address, socklen_t* length) noexcept;

 private:
  struct Incomplete {
    base::UniqueFd connection;
    Deadline limit;
  };

  void take_in(int listening);
  void add(base::UniqueFd connection);
  void watch();
  void look_at(int connection);
  void close_overdue();
  bool make_room();
  Deadline next_look();
  void wake_listener();

  const std::chrono::milliseconds patience_;
  base::WakeEvent stop_;
  base::UniqueFd epoll_;
  std::mutex mutex_;                    ///< for what follows
  std::list<Incomplete> incomplete_;    ///< the oldest first
  std::list<base::UniqueFd> complete_;  ///< to be given out
  int listening_ = -1;                  ///< libpmix's socket
  bool over_ = false;
  std::thread thread_;
};

// How much of a PMIx client's first message has arrived, without taking it from the socket.

enum class ClientGreeting {
  incomplete,
  whole,
  none,  ///< the client has closed, or says what no PMIx client says
};

/// A PMIx client of any version from 2 to 6 begins with a header of 16 bytes: two numbers, then the size of what
/// follows, 4 bytes in the order of the host (ptl_types.h, pmix_ptl_hdr_t). Names, versions and a credential follow.
inline constexpr std::size_t kGreetingHeaderBytes = 16;
/// Real ones have some hundred bytes. More than a socket buffers would never be complete.
inline constexpr std::size_t kLongestGreetingBytes = 32 * 1024;

ClientGreeting look_at_greeting(int connection) noexcept;

}  // namespace ddp::launcher
