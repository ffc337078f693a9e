// The error for arguments that a caller must not give.
#pragma once

#include <string>
#include <utility>

#include <ddp/error.hpp>

namespace ddp::base {

[[noreturn]] inline void throw_invalid_argument(std::string attempted, std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = std::move(attempted),
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

}  // namespace ddp::base
