// Sessions usually limit open files to 1024, which the program can raise itself. Many ranks or groups need more.
#pragma once

#include <cstddef>

namespace ddp::base {

/// Before @p more descriptors are opened: raises this process's soft limit (RLIMIT_NOFILE) if it may be too low, as far
/// as the hard one allows, and logs that. Children inherit it. Thread-safe.
void allow_open_files(std::size_t more) noexcept;

}  // namespace ddp::base
