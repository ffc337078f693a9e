#include "agent/change_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/unique_fd.hpp"

namespace ddp::launcher {

ChangeFolder::ChangeFolder(const std::string& scratch, int epoch) : path_(fmt::format("{}/change.{}", scratch, epoch)) {
  if (::mkdir(path_.c_str(), 0700) != 0)
    throw base::system_error(fmt::format("making the folder {}", path_), errno, "check TMPDIR");
}

ChangeFolder::ChangeFolder(ChangeFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}

ChangeFolder::~ChangeFolder() {
  if (path_.empty()) return;
  std::error_code ignored;  // the scratch folder goes with the agent
  std::filesystem::remove_all(path_, ignored);
}

void ChangeFolder::announce(bool pending) const {
  const std::string file = path_ + "/pending";
  if (!pending) {
    if (::unlink(file.c_str()) != 0 && errno != ENOENT)
      throw base::system_error(fmt::format("removing {}", file), errno);
    return;
  }
  const base::UniqueFd made{::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)};
  if (!made) throw base::system_error(fmt::format("making the file {}", file), errno, "check TMPDIR");
}

bool ChangeFolder::wants_restart(int rank) const {
  return ::access(fmt::format("{}/restart.{}", path_, rank).c_str(), F_OK) == 0;
}

}  // namespace ddp::launcher
