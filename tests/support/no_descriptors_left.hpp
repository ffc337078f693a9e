// For tests of what servers do when this process may not open anything more.
#pragma once

#include <sys/resource.h>

#include "base/unique_fd.hpp"

namespace ddp::test {

/// This process gets no further descriptor as long as it lives. The numbers below the lowest free one are all taken,
/// which the number of open descriptors would not say where there are gaps.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const base::UniqueFd lowest_free{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    const rlimit lowered{.rlim_cur = static_cast<rlim_t>(lowest_free.get()), .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &lowered);
  }
  NoDescriptorsLeft& operator=(NoDescriptorsLeft&&) = delete;
  ~NoDescriptorsLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace ddp::test
