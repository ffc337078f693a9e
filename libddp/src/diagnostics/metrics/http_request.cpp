#include "diagnostics/metrics/http_request.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

#include "diagnostics/metrics/own_host.hpp"

namespace ddp::diagnostics {
namespace {

constexpr std::string_view kPath = "/metrics";

/// Of RFC 9110's tokens, what methods are made of.
bool is_method(std::string_view word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](char letter) { return letter >= 'A' && letter <= 'Z'; });
}

bool is_text(std::string_view line) {
  return std::all_of(line.begin(), line.end(), [](unsigned char letter) { return letter >= ' ' || letter == '\t'; });
}

HttpVerdict judge_line(std::string_view line) {
  const auto first = line.find(' ');
  const auto second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos) return HttpVerdict::malformed;
  const std::string_view method = line.substr(0, first);
  const std::string_view path = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (!is_method(method) || path.empty() || !version.starts_with("HTTP/")) return HttpVerdict::malformed;
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return HttpVerdict::wrong_version;
  if (method != "GET") return HttpVerdict::wrong_method;
  return path == kPath ? HttpVerdict::metrics : HttpVerdict::unknown_path;
}

std::string_view without_blanks(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? std::string_view{}
                                         : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Of the lines of a header, each with its end. A program need not send a Host; a browser does.
HttpVerdict judge_hosts(std::string_view lines, const std::vector<std::string>& domains) {
  constexpr std::string_view kName = "host:";
  bool found = false;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find("\r\n"));
    lines.remove_prefix(std::min(line.size() + 2, lines.size()));
    const bool is_host = line.size() >= kName.size() &&
                         std::equal(kName.begin(), kName.end(), line.begin(), [](char name, unsigned char letter) {
                           return name == static_cast<char>(std::tolower(letter));
                         });
    if (!is_host) continue;
    if (std::exchange(found, true)) return HttpVerdict::malformed;
    if (!is_own_host(without_blanks(line.substr(kName.size())), domains)) return HttpVerdict::foreign_host;
  }
  return HttpVerdict::metrics;
}

}  // namespace

HttpVerdict judge_request(std::string_view received, const std::vector<std::string>& domains) {
  const std::size_t end = received.find("\r\n\r\n");
  if (std::min(end, received.size()) > kMostRequestBytes) return HttpVerdict::too_large;
  // Who speaks another protocol need not be waited for.
  const std::string_view line = received.substr(0, received.find("\r\n"));
  if (!is_text(line.substr(0, line.find('\r')))) return HttpVerdict::malformed;
  if (end == std::string_view::npos)
    return received.size() == kMostRequestBytes ? HttpVerdict::too_large : HttpVerdict::incomplete;
  const HttpVerdict verdict = judge_line(line);
  if (verdict != HttpVerdict::metrics) return verdict;
  return judge_hosts(received.substr(0, end + 2).substr(line.size() + 2), domains);
}

std::string_view status_line(HttpVerdict verdict) {
  switch (verdict) {
    case HttpVerdict::metrics: return "200 OK";
    case HttpVerdict::unknown_path: return "404 Not Found";
    case HttpVerdict::wrong_method: return "405 Method Not Allowed";
    case HttpVerdict::foreign_host: return "421 Misdirected Request";
    case HttpVerdict::too_large: return "431 Request Header Fields Too Large";
    case HttpVerdict::wrong_version: return "505 HTTP Version Not Supported";
    case HttpVerdict::malformed:
    case HttpVerdict::incomplete: break;
  }
  return "400 Bad Request";
}

}  // namespace ddp::diagnostics
