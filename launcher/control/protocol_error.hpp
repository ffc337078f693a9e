// The error of a peer of a control connection that breaks the protocol.
#pragma once

#include <string>
#include <utility>

#include <ddp/error.hpp>

namespace ddp::launcher::control {

/// Throws Error(protocol).
[[noreturn]] inline void refuse(std::string attempted, std::string cause) {
  throw Error{{.code = ErrorCode::protocol, .attempted = std::move(attempted), .cause = std::move(cause)}};
}

}  // namespace ddp::launcher::control
