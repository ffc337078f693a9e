#include "workers/before_program.hpp"

#include <unistd.h>

#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "outcome/exit_error.hpp"

namespace ddp::launcher {

std::string find_ddp_info() {
  std::error_code ignored;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string path = (own.parent_path() / "ddp-info").string();
  if (::access(path.c_str(), X_OK) == 0) return path;
  throw ExitError{kExitNotFound,
                  {.code = ErrorCode::not_found,
                   .attempted = "preparing --dump-env",
                   .cause = fmt::format("{} is missing", path),
                   .hint = "install ddp-info beside ddprun, or leave the option out"}};
}

void dump_environment_first(SpawnRequest& request, const std::string& ddp_info, const std::string& destination) {
  std::vector<std::string> words{"ddp-info", "before", "--dump", destination, "--", request.path};
  words.insert(words.end(), request.arguments.begin(), request.arguments.end());
  request.arguments = std::move(words);
  request.path = ddp_info;
}

}  // namespace ddp::launcher
