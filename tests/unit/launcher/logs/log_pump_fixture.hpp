// Routes, consoles and files for tests of the log pump.
#pragma once

#include <sys/prctl.h>

#include <csignal>

#include "logs/log_pump.hpp"
#include "unit/launcher/logs/log_files.hpp"

namespace ddp::launcher {

inline StreamRoute route_of(int rank, Stream stream = Stream::out) {
  StreamRoute route;
  route.rank = 100 + rank;
  route.local_rank = rank;
  route.role = "default";
  route.stream = stream;
  return route;
}
inline StreamRoute to_console(int rank, bool prefixed, Stream stream = Stream::out) {
  StreamRoute route = route_of(rank, stream);
  route.console = true;
  route.prefixed = prefixed;
  return route;
}
inline StreamRoute to_file(int rank, const std::string& path) {
  StreamRoute route = route_of(rank);
  route.file = path;
  return route;
}
inline StreamRoute to_tail(int rank) {
  StreamRoute route = route_of(rank, Stream::err);
  route.keep_tail = true;
  return route;
}

/// As a worker has it: standard output and nothing else, and no test outlived.
inline void keep_only(int fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(fd, STDOUT_FILENO);
  ::close_range(3, ~0U, 0);
}

struct LogPumpTest : testing::Test {
  LogPumpOptions options() {
    LogPumpOptions result;
    result.console_out = out_.fd();
    result.console_err = err_.fd();
    return result;
  }
  static Deadline generous() { return Deadline::after(kGenerous); }

  TemporaryFolder folder_;
  ReadConsole out_, err_;
};

}  // namespace ddp::launcher
