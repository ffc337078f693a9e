#include "training/damaged_file.hpp"

#include <filesystem>
#include <utility>

#include <fmt/format.h>

namespace ddp::training {

void throw_damaged(const std::string& path, std::string cause, ErrorCode code) {
  throw Error{{.code = code,
               .attempted = fmt::format("reading '{}'", path),
               .cause = std::move(cause),
               .hint = fmt::format("remove '{}' to go on from the checkpoint before",
                                   std::filesystem::path(path).parent_path().string())}};
}

void throw_other_version(const std::string& path, std::int64_t found, std::int64_t known) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = fmt::format("reading '{}'", path),
               .cause = fmt::format("it has version {} of the format, this libddp reads {}", found, known),
               .hint = "restore it with the libddp that has saved it"}};
}

}  // namespace ddp::training
