// The console of a job on several nodes: writes what their ranks have sent, whole lines of one node after those of
// another, in a thread of its own, which a slow console or file system may hold up.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "control/messages.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

/// Its memory is bounded by what the nodes may send before it is taken (PrepareAttempt::console_window_bytes). Not
/// thread-safe: for the thread of the event loop.
class JobConsole {
 public:
  /// Called in the loop: what a node sent before has been taken, or dropped because nothing reads the console.
  using OnTaken = std::function<void(int link, const control::ConsoleTaken& taken)>;

  /// @param loop must outlive the object
  /// @param out descriptors of standard output and error, not owned
  /// @param patience for the thread to end; one that takes longer hangs in a file system that does not answer, or its
  /// node is starved
  JobConsole(stream::EventLoop& loop, int out, int err, OnTaken on_taken,
             std::chrono::milliseconds patience = std::chrono::milliseconds(2'000));
  JobConsole& operator=(JobConsole&&) = delete;
  /// Drops what has not been written.
  ~JobConsole();

  /// @param link tells the nodes apart
  void write(int link, const control::ConsoleOutput& output);
  /// Ends the thread where it has nothing to do, because this process will fork. write() starts it again. A thread that
  /// is not quick enough stays, and works on.
  void rest();
  /// @p begin of the wait; @p moved: when the console last took anything
  using Limit = std::function<Deadline(Deadline::Clock::time_point begin, Deadline::Clock::time_point moved)>;
  /// Runs the loop until all has been written, or @p limit has passed, and drops the rest: what lost nodes had sent, as
  /// agents wait for what is theirs.
  void finish(const Limit& limit);

 private:
  class Writer;
  stream::EventLoop& loop_;
  std::shared_ptr<Writer> writer_;  ///< shared with the thread, which may hang
  std::thread thread_;              ///< from the first output on
  std::chrono::milliseconds patience_;
};

}  // namespace ddp::launcher
