// The PMIx server inside ddprun: workers find it through their environment and need no other service, so a program that
// runs under "srun --mpi=pmix" runs under ddprun unchanged.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "pmix_server/accept_guard.hpp"
#include "pmix_server/modex_inbox.hpp"
#include "pmix_server/scratch_directory.hpp"

namespace ddp::launcher {

// Carries PMIx_Abort calls from the PMIx library's thread, which only posts, to ddprun's.

/// One rank's call of PMIx_Abort.
struct AbortMessage {
  int rank;
  int status;
  std::string message;
};

/// Thread-safe.
class AbortInbox {
 public:
  /// Readable when there is something to take.
  int fd() const { return event_.fd(); }
  void post(AbortMessage message);
  std::vector<AbortMessage> take();

 private:
  base::WakeEvent event_;
  std::mutex mutex_;
  std::vector<AbortMessage> messages_;
};

// Whether libpmix's thread, which serves all ranks of the node, still does so: ranks that wait for it would else be
// taken for those that hang.

/// Asks the library for something that its thread does at once. Not thread-safe. For as long as the server lives.
class ServerPulse {
 public:
  ServerPulse() = default;
  ServerPulse(const ServerPulse&) = delete;
  ServerPulse& operator=(const ServerPulse&) = delete;

  /// Asks, unless the last question is still open. Does not wait.
  void ask();
  /// Since when the open question has been open; nothing: all are answered.
  std::optional<Deadline::Clock::time_point> silent_since() const;

 private:
  /// Shared with the library's thread, which may answer after this object is gone.
  std::shared_ptr<std::atomic<bool>> answered_ = std::make_shared<std::atomic<bool>>(true);
  Deadline::Clock::time_point asked_at_{};
};

/// The library's server, which exists once per process; its thread starts here. Signals that the process wants to
/// receive by signalfd must be blocked before. Fences of ranks of this host complete inside the library; those that
/// span nodes, and questions about ranks of other nodes, come out by modex(). Operations that need more than one job
/// (spawn, connect, publish) answer "not supported".
class PmixServer {
 public:
  /// Removes the variables of an outer PMIx, whose client ddprun may be, from this process's environment: the library
  /// would read them. @param tmpdir where the server's own folder is made. @param topology_xml this machine as hwloc
  /// writes it; empty: the library reads it from /sys by itself, which takes it longer than all else at its start.
  explicit PmixServer(const std::string& tmpdir, const std::string& topology_xml = {});
  PmixServer(const PmixServer&) = delete;
  PmixServer& operator=(const PmixServer&) = delete;
  ~PmixServer();

  const std::string& directory() const { return directory_.path(); }
  AbortInbox& aborts() { return *aborts_; }
  ModexInbox& modex() { return *modex_; }
  ServerPulse& pulse() { return pulse_; }

  /// For clients that died without finalizing: stops using the library, whose thread ends with the process.
  /// libpmix 4.2.2 corrupts its memory when a client dies while connecting, and PMIx_server_finalize can then wait
  /// forever on a free lock (seen in one of ten jobs whose ranks were killed right after their start). The folder is
  /// still removed.
  void abandon() noexcept { abandoned_ = true; }
  bool abandoned() const noexcept { return abandoned_; }

 private:
  ScratchDirectory directory_;
  std::unique_ptr<AcceptGuard> guard_;  ///< of the library's listening socket
  std::unique_ptr<AbortInbox> aborts_;  ///< the library's thread posts to it, and to the next
  std::unique_ptr<ModexInbox> modex_;
  ServerPulse pulse_;
  bool abandoned_ = false;
};

}  // namespace ddp::launcher
