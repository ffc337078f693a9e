#include "base/wake_event.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/system_error.hpp"

namespace ddp::base {

WakeEvent::WakeEvent() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw system_error("making an event descriptor (eventfd)", errno);
}

void WakeEvent::ring() const noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the descriptor is readable.
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
}

void WakeEvent::clear() const noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(fd_.get(), &count, sizeof count);
}

}  // namespace ddp::base
