#include "diagnostics/metrics/own_host.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/host_name.hpp"

namespace ddp::diagnostics {
namespace {

constexpr std::size_t kMostResolverBytes = 65'536;

std::string lower_name(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char letter) { return std::tolower(letter); });
  while (lower.ends_with('.')) lower.pop_back();
  return lower;
}

bool is_port(std::string_view text) {
  return text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char letter) { return letter >= '0' && letter <= '9'; });
}

bool is_address(int family, const std::string& text) {
  in6_addr bytes{};
  return ::inet_pton(family, text.c_str(), &bytes) == 1;
}

bool is_label(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '-' || letter == '_';
  });
}

}  // namespace

std::vector<std::string> domains_in(std::string_view resolver) {
  std::vector<std::string> domains;
  std::istringstream lines{std::string(resolver)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word != "search" && word != "domain") continue;
    while (words >> word) {
      // a top-level domain would admit everybody's
      if (std::string name = lower_name(word); name.find('.') != std::string::npos) domains.push_back(std::move(name));
    }
  }
  return domains;
}

std::vector<std::string> own_domains() {
  std::ifstream file("/etc/resolv.conf", std::ios::binary);
  std::string text(kMostResolverBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  std::vector<std::string> domains = domains_in(text);
  const std::string own = lower_name(base::host_name());
  if (const auto dot = own.find('.'); dot != std::string::npos) domains.push_back(own.substr(dot + 1));
  return domains;
}

bool is_own_host(std::string_view host, const std::vector<std::string>& domains) {
  if (host.starts_with('[')) {
    const auto end = host.find(']');
    if (end == std::string_view::npos) return false;
    const std::string_view port = host.substr(end + 1);
    return (port.empty() || (port.front() == ':' && is_port(port.substr(1)))) &&
           is_address(AF_INET6, std::string(host.substr(1, end - 1)));
  }
  const auto colon = host.find(':');
  if (colon != std::string_view::npos && !is_port(host.substr(colon + 1))) return false;
  const std::string name = lower_name(host.substr(0, colon));
  if (is_address(AF_INET, name)) return true;
  const auto dot = name.find('.');
  if (!is_label(std::string_view(name).substr(0, dot))) return false;
  if (dot == std::string::npos) return true;
  return std::find(domains.begin(), domains.end(), name.substr(dot + 1)) != domains.end();
}

}  // namespace ddp::diagnostics
