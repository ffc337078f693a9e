// Errors about a checkpoint's files that are not what was written.
#pragma once

#include <cstdint>
#include <string>

#include <ddp/error.hpp>

namespace ddp::training {

/// "reading '<path>': <cause>", and how to go on without the checkpoint.
[[noreturn]] void throw_damaged(const std::string& path, std::string cause, ErrorCode code = ErrorCode::protocol);
/// Error(protocol) for a file in version @p found of its format, where this libddp reads @p known: it may be whole.
[[noreturn]] void throw_other_version(const std::string& path, std::int64_t found, std::int64_t known);

}  // namespace ddp::training
