// The one exception type of libddp: what was attempted, why it failed, which ranks it concerns, and what to do.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace ddp {

/// Why something failed. The code is for programs; the text of Error::what() is for people.
enum class ErrorCode {
  invalid_argument,  ///< the caller or the user gave something that cannot be used
  conflict,          ///< two sources of the same fact disagree
  timeout,           ///< a deadline passed; Error::ranks() are the ranks that were waited for
  peer_lost,         ///< a rank died, left or no longer answers; Error::ranks() names it, and the same on all survivors
  mismatch,          ///< ranks called the same operation with different arguments
  unavailable,       ///< a required service, library or device is missing
  not_found,         ///< a key or file does not exist
  protocol,          ///< the peer sent a malformed or unexpected message
  system,            ///< an operating-system call failed
  aborted,           ///< the operation was abandoned because its group was shut down
};

/// The code's name in the enum, for example "peer_lost".
std::string_view to_string(ErrorCode code) noexcept;

/// Everything an Error says. Only code, attempted and cause are required.
struct ErrorDetail {
  ErrorCode code;            ///< for programs
  std::string attempted{};   ///< what was being done, as a phrase: "connecting to the PMIx server"
  std::string cause{};       ///< what went wrong: "connection refused"
  std::string native{};      ///< the native code by name and number: "PMIX_ERR_UNREACH (-25)"; empty if there is none
  std::vector<int> ranks{};  ///< ranks concerned, ascending; empty if none in particular
  std::string hint{};        ///< what the user can do about it; empty if nothing is known
};

/// Thrown by every libddp function that fails. Copyable, immutable, safe to pass between threads.
class Error : public std::exception {
 public:
  /// An error whose what() contains all of @p detail.
  explicit Error(ErrorDetail detail);

  /// @{
  /// The ErrorDetail member of that name. References live as long as this object.
  ErrorCode code() const noexcept { return detail_.code; }
  const std::string& attempted() const noexcept { return detail_.attempted; }
  const std::string& cause() const noexcept { return detail_.cause; }
  const std::string& native() const noexcept { return detail_.native; }
  const std::vector<int>& ranks() const noexcept { return detail_.ranks; }
  const std::string& hint() const noexcept { return detail_.hint; }
  const ErrorDetail& detail() const noexcept { return detail_; }
  /// @}

  /// One line: "<attempted>: <cause> [<native>] (ranks 1, 3-5); <hint>".
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  ErrorDetail detail_;
  std::string text_;
};

/// "rank 3", "ranks 1, 3-5"; empty string for no ranks. @p ranks ascending.
std::string format_ranks(const std::vector<int>& ranks);

}  // namespace ddp
