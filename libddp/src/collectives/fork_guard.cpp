#include "collectives/fork_guard.hpp"

#include <pthread.h>

#include <atomic>

#include <ddp/error.hpp>

namespace ddp::collectives {
namespace {

/// How many forks lie between this process and the one that loaded the library.
std::atomic<unsigned> generation{0};

void count_forks_once() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  static_cast<void>(registered);
}

}  // namespace

ForkGuard::ForkGuard() noexcept {
  count_forks_once();
  generation_ = generation.load();
}

bool ForkGuard::forked() const noexcept { return generation.load(std::memory_order_relaxed) != generation_; }

void ForkGuard::check(std::string_view attempted) const {
  if (!forked()) return;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = std::string(attempted),
               .cause = "this process was forked from the one that made the process group",
               .hint = "only that process can use the group; start helper processes before World::init, or by exec"}};
}

}  // namespace ddp::collectives
