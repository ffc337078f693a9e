// torchrun's grammar for endpoints and rendezvous settings, with IPv6 addresses that cannot be misread.
#include "options/rendezvous_values.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/closest_word.hpp"
#include "options/option_values.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kEndpointHint = "give HOST, HOST:PORT or [IPv6 ADDRESS]:PORT";

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

bool is_host_name(std::string_view host) {
  return !host.empty() && host.front() != '-' && std::all_of(host.begin(), host.end(), [](char c) {
    return is_word_character(c) || c == '.' || c == '-' || c == '_';
  });
}

/// Characters of "fe80::1%eth0"; the address itself is checked when it is looked up.
bool is_ipv6_like(std::string_view host) {
  return std::count(host.begin(), host.end(), ':') >= 2 && std::all_of(host.begin(), host.end(), [](char c) {
           return is_word_character(c) || c == ':' || c == '.' || c == '%' || c == '-' || c == '_';
         });
}

std::uint16_t parse_endpoint_port(const std::string& option, const std::string& text, std::string_view port) {
  const bool digits =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string_view::npos;
  int number = 0;
  for (const char digit : digits ? port : std::string_view{}) number = number * 10 + (digit - '0');
  if (!digits || number > 65'535)
    reject_value(option, text, "has no valid port", fmt::format("{}, where PORT is 0 to 65535", kEndpointHint));
  return static_cast<std::uint16_t>(number);
}

/// What is set by one key; nothing: torchrun uses the key, and it means nothing here.
struct ConfKey {
  const char* name;
  void (*set)(const std::string& option, const std::string& text, RendezvousOptions& rendezvous);
  const char* reason;  ///< why a key means nothing
};

bool parse_truth(const std::string& option, const std::string& text) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* word : {"1", "true", "t", "yes", "y"}) {
    if (lower == word) return true;
  }
  for (const char* word : {"0", "false", "f", "no", "n"}) {
    if (lower == word) return false;
  }
  reject_value(option, text, "is neither true nor false", "give 1 or 0");
}

template <std::chrono::milliseconds RendezvousOptions::*Member>
void set_time(const std::string& option, const std::string& text, RendezvousOptions& rendezvous) {
  rendezvous.*Member = parse_positive_seconds(option, text, kOneYear);
}

constexpr const char* kOwnHeartbeat = "ddprun notices at once when a node is lost";

const std::array kKeys{
    ConfKey{"join_timeout", &set_time<&RendezvousOptions::join_timeout>, ""},
    ConfKey{"last_call_timeout",
            [](const std::string& option, const std::string& text, RendezvousOptions& rendezvous) {
              rendezvous.last_call_timeout = parse_seconds(option, text, kOneYear);
            },
            ""},
    ConfKey{"read_timeout", &set_time<&RendezvousOptions::read_timeout>, ""},
    ConfKey{"timeout", &set_time<&RendezvousOptions::static_timeout>, ""},
    ConfKey{"is_host",
            [](const std::string& option, const std::string& text, RendezvousOptions& rendezvous) {
              rendezvous.is_host = parse_truth(option, text);
            },
            ""},
    ConfKey{"store_type",
            [](const std::string& option, const std::string& text, RendezvousOptions&) {
              if (text != "tcp") reject_value(option, text, "is not supported", "nodes meet over TCP: leave it out");
            },
            ""},
    ConfKey{"close_timeout", nullptr, "a finished job is closed at once"},
    ConfKey{"heartbeat_timeout", nullptr, kOwnHeartbeat},
    ConfKey{"keep_alive_interval", nullptr, kOwnHeartbeat},
    ConfKey{"keep_alive_max_attempt", nullptr, kOwnHeartbeat},
    ConfKey{"rank", nullptr, "--node-rank gives the number of the node"},
};

const ConfKey& find_key(const std::string& option, const std::string& name) {
  const auto found = std::find_if(kKeys.begin(), kKeys.end(), [&](const ConfKey& key) { return name == key.name; });
  if (found != kKeys.end()) return *found;
  std::vector<std::string> names;
  for (const ConfKey& key : kKeys) names.emplace_back(key.name);
  const std::string closest = base::closest_word(name, names, std::max<std::size_t>(name.size() / 2, 2));
  reject_value(option, name, "is not a rendezvous setting",
               closest.empty() ? fmt::format("use one of {}", fmt::join(names, ", "))
                               : fmt::format("did you mean '{}'?", closest));
}

}  // namespace

Endpoint parse_endpoint(const std::string& option, const std::string& text) {
  const std::string_view whole = trimmed(text);
  const auto refuse = [&](std::string_view why) { reject_value(option, text, why, kEndpointHint); };
  if (whole.starts_with('[')) {
    const auto end = whole.find(']');
    if (end == std::string_view::npos) refuse("has no closing bracket");
    const std::string_view host = whole.substr(1, end - 1);
    const std::string_view rest = whole.substr(end + 1);
    if (!is_ipv6_like(host)) refuse("has no IPv6 address in its brackets");
    if (rest.empty()) return {.host = std::string(host)};
    if (rest.front() != ':') refuse("has no colon after the bracket");
    return {.host = std::string(host), .port = parse_endpoint_port(option, text, rest.substr(1))};
  }
  const auto colon = whole.find(':');
  if (whole.find("://") != std::string_view::npos) refuse("is a URL");
  if (colon != std::string_view::npos && whole.find(':', colon + 1) != std::string_view::npos)
    refuse("has more than one colon: an IPv6 address needs brackets");
  const std::string_view host = whole.substr(0, colon);
  if (!is_host_name(host)) refuse("does not begin with a host name or address");
  if (colon == std::string_view::npos) return {.host = std::string(host)};
  return {.host = std::string(host), .port = parse_endpoint_port(option, text, whole.substr(colon + 1))};
}

std::string parse_host(const std::string& option, const std::string& text) {
  std::string_view host = trimmed(text);
  if (host.size() > 1 && host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (!is_host_name(host) && !is_ipv6_like(host))
    reject_value(option, text, "is not a host name or address", "give HOST or an IP address, without a port");
  return std::string(host);
}

void parse_rendezvous_conf(const std::string& option, const std::string& text, RendezvousOptions& rendezvous,
                           std::vector<std::string>& notices) {
  if (trimmed(text).empty()) return;
  for (const std::string_view part : parts_of(text, ',')) {
    const auto equals = part.find('=');
    const std::string key{trimmed(part.substr(0, equals))};
    if (key.empty()) reject_value(option, text, "has an entry without a key", "give KEY=VALUE,KEY=VALUE,...");
    const ConfKey& known = find_key(option, key);
    const std::string value{equals == std::string_view::npos ? std::string_view{} : trimmed(part.substr(equals + 1))};
    if (value.empty()) reject_value(option, text, fmt::format("gives no value for {}", key), "write KEY=VALUE");
    if (known.set == nullptr) {
      notices.push_back(fmt::format("{} in {} is ignored: {}", key, option, known.reason));
    } else {
      known.set(fmt::format("{} in {}", key, option), value, rendezvous);
    }
  }
}

}  // namespace ddp::launcher
