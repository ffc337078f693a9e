#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>

#include "base/errors.hpp"
#include "base/log.hpp"

namespace ddp::base {
namespace {

constexpr std::size_t kBits = 64;
/// A bit for each number, as the child may take no lock and the others' threads go on meanwhile.
constexpr std::size_t kMostFds = 65'536;
constinit std::array<std::atomic<std::uint64_t>, kMostFds / kBits> unshared{};
/// What each of them is: a program may have closed it behind its owner's back, and use the number for a file of its
/// own.
constinit std::array<std::atomic<std::uint64_t>, kMostFds> identities{};

std::size_t word_of(int fd) { return static_cast<std::size_t>(fd) / kBits; }
std::uint64_t bit_of(int fd) { return std::uint64_t{1} << (static_cast<std::size_t>(fd) % kBits); }
bool has_bit(int fd) { return fd >= 0 && word_of(fd) < unshared.size(); }
std::uint64_t identity_of(int fd) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0) return 0;
  return static_cast<std::uint64_t>(facts.st_ino) ^ (static_cast<std::uint64_t>(facts.st_dev) << 32U);
}

/// In the child, where only async-signal-safe functions may be called.
void replace_all() {
  int empty = -1;
  for (std::size_t word = 0; word < unshared.size(); ++word) {
    for (std::uint64_t bits = unshared[word].load(); bits != 0; bits &= bits - 1) {
      if (empty < 0) empty = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (empty < 0) return;
      const int fd = static_cast<int>(word * kBits) + std::countr_zero(bits);
      if (identity_of(fd) == identities[static_cast<std::size_t>(fd)].load()) ::dup3(empty, fd, O_CLOEXEC);
    }
  }
  if (empty >= 0) ::close(empty);
}

}  // namespace

UnsharedFd::UnsharedFd(UniqueFd fd) noexcept : fd_(std::move(fd)) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { replace_all(); });
  static_cast<void>(registered);
  if (!has_bit(get())) return;
  identities[static_cast<std::size_t>(get())].store(identity_of(get()));
  unshared[word_of(get())].fetch_or(bit_of(get()));
}

void UnsharedFd::reset() noexcept { release(); }

UniqueFd UnsharedFd::release() noexcept {
  if (has_bit(get())) unshared[word_of(get())].fetch_and(~bit_of(get()));  // first: the number may be another's then
  return std::move(fd_);
}

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
