#include "pmix_server/scratch_directory.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/host_name.hpp"
#include "base/log.hpp"

namespace ddp::launcher {
namespace {

// Another ddprun may sweep a folder just before it is locked.
constexpr int kTries = 20;
// libpmix 4 takes 80 KiB for 8 ranks: shared memory with the job's facts, and the topology.
constexpr std::size_t kNeededBytes = std::size_t{1} << 20U;

/// "tmpfs mounted at /tmp, 12 of 64 KiB free": of the file system of @p folder, as far as it can be told.
std::string file_system_of(const std::string& folder) {
  std::error_code ignored;
  const std::string path = std::filesystem::weakly_canonical(folder, ignored).string() + "/";
  std::string place, kind, device, type, rest;
  std::ifstream mounts{"/proc/self/mounts"};
  for (std::string at; mounts >> device >> at >> type && std::getline(mounts, rest);) {
    const bool above = path.starts_with(at.ends_with('/') ? at : at + "/");
    if (!above || at.size() < place.size()) continue;
    place = at;
    kind = type;
  }
  std::string text = place.empty() ? "its file system" : fmt::format("{} mounted at {}", kind, place);
  struct statvfs facts {};
  if (::statvfs(folder.c_str(), &facts) == 0)
    text += fmt::format(", {} of {} KiB free", facts.f_bavail * facts.f_frsize >> 10U,
                        facts.f_blocks * facts.f_frsize >> 10U);
  return text;
}

[[noreturn]] void throw_unusable(const std::string& parent, int number) {
  const bool full = number == ENOSPC || number == EDQUOT;
  throw base::system_error(fmt::format("making a temporary folder for {} KiB in '{}' ({})", kNeededBytes >> 10U, parent,
                                       file_system_of(parent)),
                           number,
                           number == EFBIG ? "raise the limit of file sizes (ulimit -f)"
                           : full          ? "make room there, or set TMPDIR to a folder on this host that has some"
                                           : "set TMPDIR to a folder on this host that you may write to");
}

/// Takes the room for a moment: libpmix maps its files, and a page that cannot be had later would end the process.
/// @return 0, or why there is none
int lack_of_room(const std::string& folder) {
  rlimit largest{};  // beyond it, the kernel would send SIGXFSZ
  if (::getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur < kNeededBytes) return EFBIG;
  const std::string path = folder + "/room";
  const base::UniqueFd file{::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
  if (!file) return errno;
  const int number = ::posix_fallocate(file.get(), 0, static_cast<off_t>(kNeededBytes));
  ::unlink(path.c_str());
  return number == ENOSPC || number == EDQUOT || number == EFBIG || number == EIO ? number : 0;
}

}  // namespace

ScratchDirectory::ScratchDirectory(const std::string& parent) {
  for (int tries = 0; tries < kTries; ++tries) {
    path_ = fmt::format("{}/{}{}", parent, base::kScratchPrefix, std::string(base::kScratchLetters, 'X'));
    if (::mkdtemp(path_.data()) == nullptr) break;  // makes it with mode 0700
    if (lock()) {
      const int lack = lack_of_room(path_);
      if (lack == 0) return;
      remove_scratch(path_);
      throw_unusable(parent, lack);
    }
    lock_.reset();
    std::error_code ignored;  // who has taken it may be faster
    std::filesystem::remove_all(path_, ignored);
  }
  throw_unusable(parent, errno);
}

/// @return false where another process has just taken the folder for a left one
bool ScratchDirectory::lock() {
  const std::string file = path_ + "/" + base::kScratchLock;
  lock_.reset(::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock_) return errno != ENOENT;  // a folder without this file is never removed by others
  if (::flock(lock_.get(), LOCK_SH | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  struct stat found {};
  if (::fstat(lock_.get(), &found) != 0 || found.st_nlink == 0) return false;
  const std::string host = base::host_name();
  if (::write(lock_.get(), host.data(), host.size()) != static_cast<ssize_t>(host.size())) ::unlink(file.c_str());
  return true;
}

ScratchDirectory::ScratchDirectory(ScratchDirectory&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

ScratchDirectory::~ScratchDirectory() {
  if (!path_.empty()) remove_scratch(path_);
}

void remove_scratch(const std::string& path) noexcept {
  try {
    if (!std::filesystem::exists(path)) return;  // another process of the job was faster
    base::remove_scratch_contents(path);
    std::filesystem::remove(path);
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, "removing the temporary folder '{}': {}", path, error.what());
  }
}

base::UniqueFd share_scratch(const std::string& path) noexcept {
  base::UniqueFd lock{::open((path + "/" + base::kScratchLock).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC)};
  if (lock) ::flock(lock.get(), LOCK_SH | LOCK_NB);
  return lock;
}

}  // namespace ddp::launcher
