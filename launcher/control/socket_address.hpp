// Socket addresses: found for names, and shown as people write them.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>

namespace ddp::launcher::control {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// All addresses of @p host, in the resolver's order; @p flags of getaddrinfo(3). Throws Error(invalid_argument).
/// Takes as long as the resolver takes.
AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted);

/// "10.1.2.3:4711", "[fd00::3]:4711"; IPv4 addresses inside IPv6 ones as IPv4.
std::string to_text(const sockaddr_storage& address);
std::string to_text(const addrinfo& address);
/// "10.1.2.3", "fe80::3%eth0"
std::string numeric_host(const addrinfo& address);

/// Address of the other end, or of this one. Throws Error(system).
sockaddr_storage peer_address(int fd);
sockaddr_storage local_address(int fd);

}  // namespace ddp::launcher::control
