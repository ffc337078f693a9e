#include "workers/descriptor_limit.hpp"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/stderr_line.hpp"
#include "base/system_error.hpp"

namespace ddp::launcher {
namespace {

// A rank takes its pidfd, its connections to the PMIx server and the store, two pipes (both ends of each until it runs)
// with two log files and, while it starts, two pipe ends and an accepted socket.
constexpr rlim_t kPerRank = 11;
// Standard streams, epoll, signals, the control connection, and the PMIx server's own files and sockets.
constexpr rlim_t kFixed = 64;

}  // namespace

rlimit raise_descriptor_limit(int num_ranks) {
  rlimit original{};
  if (::getrlimit(RLIMIT_NOFILE, &original) != 0) throw base::system_error("reading the limit of open files", errno);
  const rlim_t needed = kFixed + kPerRank * static_cast<rlim_t>(num_ranks);
  if (original.rlim_cur >= needed) return original;
  if (original.rlim_max < needed) {
    const rlim_t possible = original.rlim_max > kFixed ? (original.rlim_max - kFixed) / kPerRank : 0;
    throw Error{{.code = ErrorCode::system,
                 .attempted = fmt::format("preparing to start {} rank{}", num_ranks, num_ranks == 1 ? "" : "s"),
                 .cause = fmt::format("this needs {} open files, but the hard limit is {}", needed, original.rlim_max),
                 .native = base::errno_name(EMFILE),
                 .hint = possible == 0 ? "raise it (ulimit -Hn)"
                                       : fmt::format("raise it (ulimit -Hn), or start {} at most", possible)}};
  }
  rlimit raised = original;
  raised.rlim_cur = needed;
  if (::setrlimit(RLIMIT_NOFILE, &raised) != 0) throw base::system_error("raising the limit of open files", errno);
  return original;
}

void allow_connections(rlim_t connections, int num_ranks) {
  rlimit limit{};
  const rlim_t needed = kFixed + kPerRank * static_cast<rlim_t>(num_ranks) + connections;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == needed) return;
  base::write_stderr_line(
      fmt::format("ddprun: warning: {} open files may be needed, but the hard limit is {}; raise it (ulimit -Hn)",
                  needed, limit.rlim_max));
}

}  // namespace ddp::launcher
