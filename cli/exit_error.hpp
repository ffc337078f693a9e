// Errors that end a program with a certain exit status, where scripts rely on that status.
#pragma once

#include <string>
#include <utility>

#include <ddp/error.hpp>

namespace ddp::cli {

inline constexpr int kExitUsage = 2;  ///< wrong command line, as in torchrun and most programs

class ExitError : public Error {
 public:
  ExitError(int exit_status, ErrorDetail detail) : Error(std::move(detail)), exit_status_(exit_status) {}
  int exit_status() const noexcept { return exit_status_; }

 private:
  int exit_status_;
};

/// A wrong command line.
class UsageError : public ExitError {
 public:
  UsageError(std::string attempted, std::string cause, std::string hint, ErrorCode code = ErrorCode::invalid_argument)
      : ExitError(
            kExitUsage,
            {.code = code, .attempted = std::move(attempted), .cause = std::move(cause), .hint = std::move(hint)}) {}
};

/// The attempt that most of them name.
inline constexpr const char* kReadingCommandLine = "reading the command line";

}  // namespace ddp::cli
