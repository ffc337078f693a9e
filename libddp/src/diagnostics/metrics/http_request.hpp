// What a client of the metrics endpoint asks for: HTTP's GET of one path, and nothing else.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::diagnostics {

/// Beyond it, a request is refused. Prometheus sends some 300 bytes.
inline constexpr std::size_t kMostRequestBytes = 4096;

enum class HttpVerdict {
  incomplete,    ///< more is to come
  metrics,       ///< 200
  malformed,     ///< 400
  unknown_path,  ///< 404
  wrong_method,  ///< 405
  foreign_host,  ///< 421: the client means another host, see own_host.hpp
  too_large,     ///< 431
  wrong_version  ///< 505
};

/// @param received all that has come so far. @param domains of this host
HttpVerdict judge_request(std::string_view received, const std::vector<std::string>& domains = {});

/// "404 Not Found". Not for incomplete.
std::string_view status_line(HttpVerdict verdict);

}  // namespace ddp::diagnostics
