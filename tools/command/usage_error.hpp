// A wrong command line: it ends ddp-info with exit status 2, as in ddprun and most programs.
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
               .native = {},
               .ranks = {},
               .hint = std::move(hint)}) {}
};

}  // namespace ddp::tools
