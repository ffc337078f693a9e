#include "pmix_server/scratch_directory.hpp"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/system_error.hpp"

namespace ddp::launcher {

ScratchDirectory::ScratchDirectory(const std::string& parent) : path_(parent + "/ddprun.XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) {  // makes it with mode 0700
    throw base::system_error(fmt::format("making a temporary folder in '{}'", parent), errno,
                             "set TMPDIR to a folder on this host that you may write to");
  }
}

ScratchDirectory::ScratchDirectory(ScratchDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}

ScratchDirectory::~ScratchDirectory() {
  if (path_.empty()) return;
  std::error_code status;
  std::filesystem::remove_all(path_, status);
  if (status) base::log(base::LogLevel::warning, "removing the temporary folder '{}': {}", path_, status.message());
}

}  // namespace ddp::launcher
