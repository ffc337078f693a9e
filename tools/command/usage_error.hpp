// A wrong command line, exit status 2 as in ddprun.
#pragma once

#include <string>
#include <utility>

#include <ddp/error.hpp>

namespace ddp::tools {

class UsageError : public Error {
 public:
  UsageError(std::string attempted, std::string cause, std::string hint)
      : Error({.code = ErrorCode::invalid_argument,
               .attempted = std::move(attempted),
               .cause = std::move(cause),
               .hint = std::move(hint)}) {}
};

}  // namespace ddp::tools
