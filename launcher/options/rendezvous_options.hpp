// Where nodes rendezvous: host names, endpoints and torchrun's --rdzv-conf.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options/launch_options.hpp"

namespace ddp::launcher {

struct Endpoint {
  std::string host;  ///< without brackets
  std::optional<std::uint16_t> port{};
};

/// "host", "host:port", "[IPv6]" or "[IPv6]:port"; port 0 stands for any free one. Throws ExitError(kExitUsage) that
/// names @p option.
Endpoint parse_endpoint(const std::string& option, const std::string& text);

/// A host name or an address, without port; an IPv6 address may have brackets, which are taken off.
std::string parse_host(const std::string& option, const std::string& text);

/// Sets what "key=value,..." says. Keys that torchrun knows and that mean nothing here are told in @p notices. Throws
/// like parse_endpoint for other keys and for wrong values.
void parse_rendezvous_conf(const std::string& option, const std::string& text, RendezvousOptions& rendezvous,
                           std::vector<std::string>& notices);

}  // namespace ddp::launcher
