// What comes on the standard error of each host's ssh: kept for a message until its agent has joined, then shown.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// Has a thread that writes to standard error, so that its slow reader slows the hosts' writers but not ddprun. The
/// other functions are for one thread.
class HostWords {
 public:
  /// Throws Error(system).
  explicit HostWords(std::size_t hosts);
  HostWords& operator=(HostWords&&) = delete;
  ~HostWords();

  /// Descriptor for the host's process to write to. Throws Error(system).
  base::UniqueFd open(std::size_t host);
  /// From now on, with what was kept.
  void show(std::size_t host);
  /// The last line with text of what is kept, without control characters and at most 300 bytes; empty: none.
  std::string last_line(std::size_t host);
  /// Shows what there is, for hosts whose processes have ended, until @p deadline.
  void finish(Deadline deadline);

 private:
  struct Source {
    base::UniqueFd pipe;
    std::string kept;
    bool shown = false;
  };
  void run();
  std::string take_ready(bool& anything);
  bool take_in(Source& source);

  base::WakeEvent wake_;
  base::WakeEvent stop_;
  std::mutex mutex_;
  std::condition_variable over_changed_;
  std::vector<Source> sources_;
  bool finishing_ = false;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace ddp::launcher
