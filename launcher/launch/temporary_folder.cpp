#include "launch/temporary_folder.hpp"

#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>

#include <fmt/format.h>

#include "options/option_values.hpp"

namespace ddp::launcher {

std::string temporary_folder(const base::Environment& environment) {
  const std::string folder = environment.raw("TMPDIR").value_or("");
  return folder.empty() ? "/tmp" : folder;
}

std::string leave_missing_temporary_folder(base::Environment& environment) {
  const std::string folder = environment.raw("TMPDIR").value_or("");
  struct stat facts {};
  // What is there and cannot be used, for example as it is full, was chosen for a reason.
  if (folder.empty() || ::stat(folder.c_str(), &facts) == 0 || (errno != ENOENT && errno != ENOTDIR)) return {};
  auto variables = environment.variables();
  variables.erase("TMPDIR");
  environment = base::Environment{std::move(variables)};
  ::unsetenv("TMPDIR");
  return fmt::format("warning: there is no folder '{}' (TMPDIR) here: ddprun and the ranks use /tmp",
                     printable(folder));
}

}  // namespace ddp::launcher
