// The standard input of rank 0 on a node that gets it from the frontend, which wants to know how much of it rank 0 has
// read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <ddp/bytes.hpp>

#include "base/unique_fd.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

/// A pipe that takes this process's standard input's place, for the ranks to inherit. It holds a page: what rank 0 has
/// read is known exactly. Not thread-safe.
class InputFeed {
 public:
  using Taken = std::function<void(std::int64_t bytes)>;

  /// @p loop must outlive the object. @p taken: so many bytes more have been read. Throws Error(system).
  /// @param input the descriptor that the reading end gets
  InputFeed(stream::EventLoop& loop, Taken taken, int input);
  InputFeed& operator=(InputFeed&&) = delete;
  ~InputFeed();

  /// @param end nothing comes after @p data
  void add(const Bytes& data, bool end);
  /// Tells what has been read, also of a piece that has not been read to its end.
  void report();

 private:
  void pump();
  void close();

  stream::EventLoop& loop_;
  Taken taken_;
  int input_;
  base::UniqueFd pipe_;  ///< the writing end; closed once the input has ended
  bool exact_ = false;   ///< the pipe holds no more than a page
  Bytes pending_;
  std::size_t in_pipe_ = 0;  ///< as far as is known
  std::int64_t read_ = 0;    ///< by rank 0, and not reported
  bool ending_ = false;
};

}  // namespace ddp::launcher
