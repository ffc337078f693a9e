// Errors about a checkpoint's files that are not what was written.
#pragma once

#include <string>

#include <ddp/error.hpp>

namespace ddp::training {

/// "reading '<path>': <cause>", and how to go on without the checkpoint.
[[noreturn]] void throw_damaged(const std::string& path, std::string cause, ErrorCode code = ErrorCode::protocol);

}  // namespace ddp::training
