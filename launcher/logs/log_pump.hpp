// Moves workers' output to log files, the console (with a prefix) and, its last lines, to the report.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "control/connection.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

enum class Stream { out, err };

/// Where one stream of one rank goes. Several may apply.
struct StreamRoute {
  int rank = 0;
  int local_rank = 0;
  std::string role;
  Stream stream = Stream::out;
  std::string file{};          ///< path, made with its folders; empty: none
  bool console = false;        ///< ddprun's own stream of the same kind
  bool prefixed = false;       ///< console lines carry the prefix, or are JSON
  bool filtered_file = false;  ///< lines that contain a filter's text also go to the attempt's filtered_*.log
  bool keep_tail = false;      ///< the last lines are kept for tail()
};

struct LogPumpOptions {
  std::string prefix_template;  ///< empty: "[${role_name}${local_rank}]:"
  LogFormat format = LogFormat::text;
  bool timestamps = false;    ///< of lines with a prefix, before it
  bool terminal_out = false;  ///< console_out is one: prefixes in one of several colours per rank, bars in place
  bool terminal_err = false;
  std::string host;     ///< for LogFormat::json
  int console_out = 1;  ///< descriptors; not owned
  int console_err = 2;
  /// The job's console, which gets the lines instead while it is connected. No cipher: it is on this host.
  std::shared_ptr<control::Connection> job_console{};
  int epoch = 0;                             ///< for its messages
  std::size_t job_console_window_bytes = 0;  ///< see control::PrepareAttempt
  std::vector<std::string> stdout_filters, stderr_filters;
  std::string filtered_stdout_file{}, filtered_stderr_file{};  ///< paths
};

/// One thread that reads the workers' pipes. Lines are written whole and never lost; unprefixed console streams are
/// copied as they come, but an unfinished line waits up to 100 ms for its end so that other ranks' lines do not tear it
/// (2 s where a full pipe cut a long write: the rest is sure to come). Of a progress bar ("\r" ends its lines),
/// prefixed consoles show some states: see LogStream. Workers wait for a slow console only once their pipe is full, and
/// never for a file that cannot be written: its bytes are dropped, with one line on standard error. Output to a console
/// without a reader (EPIPE) is dropped, too. Signals must be blocked in the constructing thread. One per attempt.
class LogPump {
 public:
  /// How long a console may stall. Called repeatedly during the wait, which it can so cut short.
  using Patience = std::function<std::chrono::milliseconds()>;

  explicit LogPump(LogPumpOptions options);
  LogPump& operator=(LogPump&&) = delete;
  ~LogPump();

  /// The worker's end of the pipe, close-on-exec; /dev/null for a route without targets. Call it before start(). Throws
  /// Error(system) naming the file or folder that cannot be made.
  base::UniqueFd add(const StreamRoute& route);
  void start();

  /// The last lines that a rank wrote to a stream with keep_tail: at most kTailLines lines and kTailBytes bytes.
  /// What has been written before the rank ended is in it. Thread-safe.
  std::string tail(int local_rank);
  static constexpr int kTailLines = 20;
  static constexpr std::size_t kTailBytes = 8192;

  /// Delivers all that is in the pipes now, even if other processes hold them open, writes unfinished lines, closes
  /// files and ends the thread. Gives up on consoles that have stalled for the patience.
  void finish(const Patience& patience);
  void finish(std::chrono::milliseconds patience);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::launcher
