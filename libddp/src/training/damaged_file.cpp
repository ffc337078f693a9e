#include "training/damaged_file.hpp"

#include <filesystem>
#include <utility>

#include <fmt/format.h>

namespace ddp::training {

void throw_damaged(const std::string& path, std::string cause, ErrorCode code) {
  throw Error{{.code = code,
               .attempted = fmt::format("reading '{}'", path),
               .cause = std::move(cause),
               .native = {},
               .ranks = {},
               .hint = fmt::format("remove '{}' to go on from the checkpoint before",
                                   std::filesystem::path(path).parent_path().string())}};
}

}  // namespace ddp::training
