#include "launch/rendezvous.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "launch/own_network.hpp"

namespace ddp::launcher {
namespace {

// Ports of torchrun: a static rendezvous, and c10d's default.
constexpr std::uint16_t kStaticPort = 29500;
constexpr std::uint16_t kDynamicPort = 29400;

[[noreturn]] void reject_point(const std::string& cause) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = fmt::format("reading {}", kAgentVariable),
               .cause = cause,
               .native = {},
               .ranks = {},
               .hint = "ddprun sets it for the agents that it starts; unset it elsewhere"}};
}

/// Null: another agent of this host leads. Linux may refuse the port to both of two that listen at the same moment (it
/// looks for other listeners after it has marked the socket), so they retry after random pauses.
std::unique_ptr<control::Listener> listen_unless_another_does(const RendezvousPoint& point) {
  constexpr int kTries = 4;
  constexpr int kLongestPauseMs = 30;
  std::random_device source;
  for (int left = kTries; left > 0; --left) {
    try {
      return std::make_unique<control::Listener>("", point.port, point.secret);
    } catch (const Error& error) {
      if (error.detail().native.find("EADDRINUSE") == std::string::npos) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(source() % kLongestPauseMs));
  }
  return nullptr;
}

}  // namespace

std::string RendezvousPoint::encode() const {
  return fmt::format("{};{};{}", fmt::join(addresses, ","), port, secret.to_hex());
}

RendezvousPoint RendezvousPoint::decode(const std::string& text) {
  const auto first = text.find(';');
  const auto second = text.find(';', first == std::string::npos ? first : first + 1);
  if (second == std::string::npos) reject_point("it does not have three parts");
  RendezvousPoint point{.addresses = {}, .port = 0, .secret = control::Secret::from_hex(text.substr(second + 1))};
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

Rendezvous meet_as_frontend(const std::vector<std::string>& addresses) {
  RendezvousPoint point{.addresses = addresses, .port = 0, .secret = control::Secret::random()};
  auto listener = std::make_unique<control::Listener>("", 0, point.secret);
  point.port = listener->port();
  return {.listener = std::move(listener),
          .point = std::move(point),
          .order = -1,
          .deadline = Deadline::after(std::chrono::seconds(0))};
}

Rendezvous meet_as_frontend_agent(const base::Environment& environment, Deadline deadline) {
  return {.listener = {},
          .point = RendezvousPoint::decode(environment.raw(kAgentVariable).value_or("")),
          .order = environment.number("SLURM_NODEID").value_or(-1),
          .deadline = deadline};
}

Rendezvous meet_at_endpoint(const LaunchOptions& options, const base::Environment& environment) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  const bool fixed = rendezvous.backend != RendezvousBackend::c10d;
  const bool endpoint = !rendezvous.endpoint_host.empty();
  const std::string host = endpoint ? rendezvous.endpoint_host : rendezvous.master_addr;
  std::uint16_t port = fixed ? kStaticPort : kDynamicPort;
  if (endpoint && rendezvous.endpoint_port) {
    port = *rendezvous.endpoint_port;
  } else if (!endpoint && rendezvous.master_port) {
    port = *rendezvous.master_port;
  }
  const int node_rank = rendezvous.node_rank.value_or(0);
  const std::string phrase = environment.text("DDP_RDZV_SECRET");
  RendezvousPoint point{.addresses = {host},
                        .port = port,
                        .secret = control::Secret::from_text(fmt::format("{}\n{}", rendezvous.run_id, phrase))};
  const Deadline deadline = Deadline::after(fixed ? rendezvous.static_timeout : rendezvous.read_timeout);
  const bool owner = rendezvous.is_host ? *rendezvous.is_host : fixed ? node_rank == 0 : is_own_name(host);
  Rendezvous meeting{.listener = {}, .point = std::move(point), .order = fixed ? node_rank : -1, .deadline = deadline};
  if (!owner) return meeting;
  if (!fixed && !rendezvous.is_host) {
    meeting.listener = listen_unless_another_does(meeting.point);
  } else {
    meeting.listener = std::make_unique<control::Listener>("", port, meeting.point.secret);
  }
  if (meeting.listener) meeting.point.port = meeting.listener->port();
  return meeting;
}

}  // namespace ddp::launcher
