#include "base/left_scratch.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <exception>
#include <string>

#include <fmt/format.h>

#include "base/host_name.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"

namespace ddp::base {
namespace {

// From the making of a folder to its host's name in the lock, for clocks of a file server that differ, too.
constexpr std::chrono::hours kMakingLimit{1};

bool is_old(const struct stat& found) {
  return std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(found.st_mtime) > kMakingLimit;
}

bool is_scratch_name(std::string_view name) {
  return name.size() == kScratchPrefix.size() + kScratchLetters && name.starts_with(kScratchPrefix);
}

/// The file "lock" of an open folder, if this user made both and nobody uses the folder; locked then.
UniqueFd take_left(int folder) {
  struct stat found {};
  const auto is_own = [&](int fd) { return ::fstat(fd, &found) == 0 && found.st_uid == ::geteuid(); };
  if (!is_own(folder) || (found.st_mode & 0777U) != 0700) return {};
  UniqueFd lock{::openat(folder, kScratchLock, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  if (!lock || !is_own(lock.get()) || !S_ISREG(found.st_mode)) return {};
  if (found.st_size == 0 && !is_old(found)) return {};  // its maker must get it, and next writes the host's name
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return {};
  // On a shared file system, locks may hold on their host only.
  std::array<char, 256> host{};
  const ssize_t size = ::read(lock.get(), host.data(), host.size());
  if (size == 0 && is_old(found)) return lock;
  if (size <= 0 || std::string_view(host.data(), static_cast<std::size_t>(size)) != host_name()) return {};
  return lock;
}

void remove_if_left(int parent, const std::string& name) {
  const UniqueFd folder{::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  if (!folder) return;
  const UniqueFd lock = take_left(folder.get());
  // By the descriptor, so that it is this folder whatever its path means by now.
  if (lock) remove_scratch_contents(fmt::format("/proc/self/fd/{}", folder.get()));
  // Without a lock, too, if it is empty.
  struct stat found {};
  if (::fstat(folder.get(), &found) != 0 || found.st_uid != ::geteuid()) return;
  if (lock || is_old(found)) ::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

}  // namespace

void remove_scratch_contents(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator{folder}) {
    if (entry.path().filename() != kScratchLock) std::filesystem::remove_all(entry.path());
  }
  std::filesystem::remove(folder / kScratchLock);
}

void remove_left_scratch(const std::string& parent, Deadline deadline) noexcept {
  try {
    const UniqueFd folder{::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (!folder) return;
    for (const auto& entry : std::filesystem::directory_iterator{parent}) {
      if (deadline.expired()) return;
      const std::string name = entry.path().filename();
      if (!is_scratch_name(name)) continue;
      try {
        remove_if_left(folder.get(), name);
      } catch (const std::exception& error) {  // a file that is not to be removed does not keep the other folders
        log(LogLevel::info, "removing the left folder '{}/{}': {}", parent, name, error.what());
      }
    }
  } catch (const std::exception& error) {
    log(LogLevel::info, "removing left temporary folders in '{}': {}", parent, error.what());
  }
}

}  // namespace ddp::base
