// Runs ddp-step, the program that does for the plugin what must not happen inside srun or slurmstepd: it serves the
// store, and reads the machine with hwloc.
#pragma once

#include <csignal>
#include <span>
#include <string>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "base/process.hpp"
#include "base/unique_fd.hpp"

namespace ddp::srun_plugin {

/// Where it lies: @p given (the argument helper= of plugstack.conf) if that is not empty, else where it was installed
/// relative to the plugin, also if it is not there now, unless it is at the path of the build's installation.
std::string find_ddp_step(const std::string& given);

/// A running ddp-step. It leads a session of its own, so that signals to srun's terminal do not reach it, has no other
/// descriptor of this process, and its environment is only what it is given here.
/// Destroying it closes its input, at whose end it ends, and kills it if it does not.
class DdpStepClient {
 public:
  /// It finds the descriptor that it inherits here.
  static constexpr int kInheritedFd = 3;

  /// @param inherited a descriptor of this process that it gets, too; -1: none.
  /// Throws Error(system, unavailable) naming the path.
  DdpStepClient(const std::string& path, std::span<const std::string> arguments,
                std::span<const std::string> environment, int inherited = -1);
  DdpStepClient(DdpStepClient&&) noexcept = default;
  DdpStepClient& operator=(DdpStepClient&& other) noexcept;
  ~DdpStepClient();

  /// Writes to its standard input. Throws Error: peer_lost, timeout.
  void send(std::span<const std::byte> data, Deadline deadline);
  void close_input() { input_.reset(); }
  /// What it writes up to a newline, without that. Throws Error: peer_lost when it ended, timeout.
  std::string read_line(Deadline deadline);
  /// All that it writes. Throws Error(timeout), having killed it.
  Bytes read_all(Deadline deadline);
  /// Closes its input and waits for its end; kills it at the deadline. Returns its exit status, 128 + signal, or -1 if
  /// another caller has reaped it or not even SIGKILL ends it (a process in the kernel's uninterruptible sleep).
  int finish(Deadline deadline) noexcept;
  /// That Slurm ended it with the step, as far as finish() has found out, or a member that threw because it had ended.
  bool terminated() const { return status_ == 128 + SIGTERM; }

 private:
  bool read_some(Deadline deadline, Bytes& bytes, std::size_t most);

  std::string path_;
  int status_ = -1;  ///< of finish(), the first time
  base::ChildProcess process_;
  base::UniqueFd input_;
  base::UniqueFd output_;
};

}  // namespace ddp::srun_plugin
