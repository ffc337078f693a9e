// What a client of the metrics endpoint asks for: HTTP's GET of one path, and nothing else.
#pragma once

#include <cstddef>
#include <string_view>

namespace ddp::diagnostics {

/// Beyond it, a request is refused. Prometheus sends some 300 bytes.
inline constexpr std::size_t kMostRequestBytes = 4096;

enum class HttpVerdict {
  incomplete,    ///< more is to come
  metrics,       ///< 200
  malformed,     ///< 400
  unknown_path,  ///< 404
  wrong_method,  ///< 405
  too_large,     ///< 431
  wrong_version  ///< 505
};

/// @param received all that has come so far.
HttpVerdict judge_request(std::string_view received);

/// "404 Not Found". Not for incomplete.
std::string_view status_line(HttpVerdict verdict);

}  // namespace ddp::diagnostics
