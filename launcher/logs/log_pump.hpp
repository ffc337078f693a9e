// Moves what workers write to where it belongs: log files, the console with a prefix, the last lines for the report.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

enum class Stream { out, err };

/// Where one stream of one rank goes. Several may apply.
struct StreamRoute {
  int rank = 0;
  int local_rank = 0;
  std::string role;
  Stream stream = Stream::out;
  std::string file;            ///< path, made with its folders; empty: none
  bool console = false;        ///< ddprun's own stream of the same kind
  bool prefixed = false;       ///< console lines carry the prefix, or are JSON
  bool filtered_file = false;  ///< lines that contain a filter's text also go to the attempt's filtered_*.log
  bool keep_tail = false;      ///< the last lines are kept for tail()
};

struct LogPumpOptions {
  std::string prefix_template;  ///< empty: "[${role_name}${local_rank}]:"
  LogFormat format = LogFormat::text;
  bool colour_out = false;  ///< prefixes on console_out in one of several colours per rank
  bool colour_err = false;
  std::string host;     ///< for LogFormat::json
  int console_out = 1;  ///< descriptors; not owned
  int console_err = 2;
  std::vector<std::string> stdout_filters, stderr_filters;
  std::string filtered_stdout_file, filtered_stderr_file;  ///< paths
};

/// One thread that reads the workers' pipes. Lines are written whole and never lost; unprefixed console streams are
/// passed on as they come, but for an unfinished line, which waits up to 100 ms for its end so that other ranks' lines
/// do not tear it (2 s where a full pipe has cut a long write: its rest is sure to come). Workers wait for a slow
/// console only once their pipe is full, and never for a file that cannot be written: that is said once per file on
/// standard error, and what does not fit is dropped. A console that is gone (EPIPE) is dropped likewise.
/// Signals must be blocked in the constructing thread. Made anew for every attempt.
class LogPump {
 public:
  /// How long a slow reader may take without taking anything. Asked again and again while it is waited for, so that
  /// the wait can be cut short.
  using Patience = std::function<std::chrono::milliseconds()>;

  explicit LogPump(LogPumpOptions options);
  LogPump(const LogPump&) = delete;
  LogPump& operator=(const LogPump&) = delete;
  ~LogPump();

  /// Where the worker is to write: the pipe's other end, close-on-exec; /dev/null for a route that leads nowhere.
  /// To be called before start(). Throws Error(system) naming the file or folder that cannot be made.
  base::UniqueFd add(const StreamRoute& route);
  void start();

  /// The last lines that a rank wrote to a stream with keep_tail: at most kTailLines lines and kTailBytes bytes.
  /// What has been written before the rank ended is in it. Thread-safe.
  std::string tail(int local_rank);
  static constexpr int kTailLines = 20;
  static constexpr std::size_t kTailBytes = 8192;

  /// Delivers all that is in the pipes now, also where other processes still hold them open, writes unfinished lines,
  /// closes files and ends the thread. Gives up on consoles once nothing has moved for the patience.
  void finish(const Patience& patience);
  void finish(std::chrono::milliseconds patience);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::launcher
