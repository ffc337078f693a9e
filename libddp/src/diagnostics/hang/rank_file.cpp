#include "diagnostics/hang/rank_file.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

namespace ddp::diagnostics {
namespace {

namespace fs = std::filesystem;

/// Of Linux before 5.6 and of containers that know no openat2(2): follows no links at all.
base::UniqueFd open_without_links(int root, const fs::path& path) {
  base::UniqueFd at{::openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  for (const fs::path& name : path.relative_path()) {
    if (name == "." || name.empty()) continue;
    if (!at || name == "..") return {};
    struct stat facts {};
    at.reset(::openat(at.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!at || ::fstat(at.get(), &facts) != 0 || S_ISLNK(facts.st_mode)) return {};
  }
  return at;
}

base::UniqueFd find_in_root(int root, const std::string& path) {
  open_how how{};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  base::UniqueFd found{static_cast<int>(::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how))};
  if (!found && (errno == ENOSYS || errno == EPERM)) return open_without_links(root, path);
  return found;
}

/// A path from the working directory as one from the root; empty where the one is not in the other.
std::string from_root(const std::string& process, const std::string& path) {
  if (path.starts_with('/')) return path;
  std::error_code failure;
  const std::string root = fs::read_symlink(process + "/root", failure).string();
  const std::string folder = failure ? std::string{} : fs::read_symlink(process + "/cwd", failure).string();
  if (failure || folder.empty()) return {};
  const std::string prefix = root == "/" ? std::string{} : root;
  if (!folder.starts_with(prefix + '/')) return {};
  return fmt::format("{}/{}", folder.substr(prefix.size()), path);
}

}  // namespace

base::UniqueFd open_rank_file(const std::string& proc, pid_t pid, const std::string& path, mode_t type, int flags) {
  const std::string process = fmt::format("{}/{}", proc, pid);
  const std::string absolute = from_root(process, path);
  const base::UniqueFd root{::open((process + "/root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
  struct stat owner {};
  struct stat facts {};
  if (absolute.empty() || !root || ::stat(process.c_str(), &owner) != 0) return {};
  // looked at before it is opened: opening a device may already do something
  const base::UniqueFd found = find_in_root(root.get(), absolute);
  if (!found || ::fstat(found.get(), &facts) != 0) return {};
  if ((facts.st_mode & S_IFMT) != type || facts.st_uid != owner.st_uid) return {};
  return base::UniqueFd{
      ::open(fmt::format("/proc/self/fd/{}", found.get()).c_str(), flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
}

}  // namespace ddp::diagnostics
