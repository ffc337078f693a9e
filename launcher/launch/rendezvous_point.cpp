#include "launch/rendezvous_point.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "launch/launch_role.hpp"

namespace ddp::launcher {
namespace {

[[noreturn]] void reject_point(const std::string& cause) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = fmt::format("reading {}", kAgentVariable),
               .cause = cause,
               .hint = "ddprun sets it for the agents that it starts; unset it elsewhere"}};
}

}  // namespace

std::string RendezvousPoint::encode() const {
  return fmt::format("{};{};{}{}{}", fmt::join(addresses, ","), port, secret.to_hex(), host.empty() ? "" : ";", host);
}

RendezvousPoint RendezvousPoint::decode(const std::string& text) {
  const auto first = text.find(';');
  const auto second = text.find(';', first == std::string::npos ? first : first + 1);
  if (second == std::string::npos) reject_point("it does not have three parts");
  const auto third = std::min(text.find(';', second + 1), text.size());
  RendezvousPoint point{.port = 0,
                        .secret = control::Secret::from_hex(text.substr(second + 1, third - second - 1)),
                        .host = third < text.size() ? text.substr(third + 1) : std::string()};
  const std::string list = text.substr(0, first);
  for (std::size_t begin = 0; begin < list.size();) {
    const auto comma = std::min(list.find(',', begin), list.size());
    if (comma > begin) point.addresses.push_back(list.substr(begin, comma - begin));
    begin = comma + 1;
  }
  const std::string port = text.substr(first + 1, second - first - 1);
  const auto [end, status] = std::from_chars(port.data(), port.data() + port.size(), point.port);
  if (status != std::errc{} || end != port.data() + port.size() || point.port == 0)
    reject_point(fmt::format("'{}' is not a port", port));
  if (point.addresses.empty()) reject_point("it names no address");
  return point;
}

}  // namespace ddp::launcher
