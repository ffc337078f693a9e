// An error that ends ddprun with a certain exit status, where scripts rely on that status.
#pragma once

#include <utility>

#include <ddp/error.hpp>

namespace ddp::launcher {

inline constexpr int kExitUsage = 2;            ///< wrong command line, as in torchrun and most programs
inline constexpr int kExitNotExecutable = 126;  ///< as POSIX shells do (XCU 2.8.2)
inline constexpr int kExitNotFound = 127;       ///< as POSIX shells do (XCU 2.8.2)

class ExitError : public Error {
 public:
  ExitError(int exit_status, ErrorDetail detail) : Error(std::move(detail)), exit_status_(exit_status) {}
  int exit_status() const noexcept { return exit_status_; }

 private:
  int exit_status_;
};

}  // namespace ddp::launcher
