// TCP with deadlines: connect, listen, and moving whole messages. Sockets are non-blocking and close-on-exec.
#pragma once

#include <netdb.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

struct addrinfo;

namespace ddp::base {

/// Connects to host:port. Tries every address that the name has, the next one beside those that keep quiet, and takes
/// the first that accepts. Throws Error: invalid_argument when the name does not resolve, unavailable when all
/// addresses refuse (with the last native code), timeout at the deadline.
UniqueFd connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline);

/// The same for the addresses of a list of getaddrinfo(3). @p attempted names the attempt in errors.
UniqueFd connect_first(const addrinfo& addresses, Deadline deadline, const std::string& attempted);

/// A listening socket on @p address (numeric IPv4 or IPv6) and a port that the kernel chooses.
UniqueFd listen_tcp(const std::string& address);

/// A listening socket at an address of getaddrinfo(3); accepted ones inherit TCP_NODELAY. "::" takes IPv4 peers, too,
/// unless @p only_ipv6. Empty, with errno, where it cannot be.
UniqueFd listen_at(const addrinfo& address, bool only_ipv6 = false) noexcept;

/// The port that a listening socket got.
std::uint16_t local_port(int fd);

/// Sends all bytes. @p what names the exchange in errors. Throws peer_lost when the other side closes, timeout at the
/// deadline.
void send_all(int fd, std::span<const std::byte> data, Deadline deadline, const std::string& what);

/// Receives exactly data.size() bytes; errors as send_all.
void receive_exactly(int fd, std::span<std::byte> data, Deadline deadline, const std::string& what);

/// Waits until @p events (POLLIN, POLLOUT) are ready; false at the deadline. Resumes interrupted waits.
bool wait_for(int fd, short events, Deadline deadline);

/// A vanished peer of a TCP connection is given up after 20 s: 5 s without traffic and 3 probes 5 s apart, or 20 s
/// without acknowledgement (tcp(7)). Does nothing for other sockets.
void keep_alive(int fd) noexcept;

/// Whether a client waits to be accepted. Decides it where accept(2) has failed for want of a descriptor or of memory,
/// which Linux takes before it looks (net/socket.c, __sys_accept4_file).
bool client_waits(int listening);

// getaddrinfo(3) with an owner, a deadline, and errors as ddp::Error.

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// All TCP addresses of @p host, in the resolver's order; @p flags of getaddrinfo(3). Throws Error: invalid_argument,
/// or timeout when the resolver does not answer by @p deadline, or within 30 s.
AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted,
                    Deadline deadline);
AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted);

}  // namespace ddp::base
