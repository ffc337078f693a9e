#include "pmix_server/abort_inbox.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/system_error.hpp"

namespace ddp::launcher {

AbortInbox::AbortInbox() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw base::system_error("making an event descriptor (eventfd)", errno);
}

void AbortInbox::post(AbortMessage message) {
  const std::lock_guard lock{mutex_};
  messages_.push_back(std::move(message));
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the descriptor is readable anyway.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

std::vector<AbortMessage> AbortInbox::take() {
  const std::lock_guard lock{mutex_};
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
  return std::exchange(messages_, {});
}

}  // namespace ddp::launcher
