#include "base/open_file_limit.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/unique_fd.hpp"

namespace ddp::base {
namespace {

/// For what the program opens meanwhile.
constexpr rlim_t kSpare = 64;

}  // namespace

void allow_open_files(std::size_t more) noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  // the lowest number that is free: as many are open, but for gaps
  const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const rlim_t open = next ? static_cast<rlim_t>(next.get()) : limit.rlim_cur;
  const rlim_t needed = open + more + kSpare;
  if (limit.rlim_cur >= needed) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return;  // then whoever opens one too many says so
  log(LogLevel::info,
      "raised this process's limit of open files from {} to {}: {} are open, and its groups may need {}", before,
      limit.rlim_cur, open, more);
}

}  // namespace ddp::base
