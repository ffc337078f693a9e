// The side of a TCPStore's clients: has the address of this host admitted by a server that asks for a secret.
#pragma once

#include <cstdint>
#include <string>

#include <ddp/deadline.hpp>

namespace ddp::store_server {

/// 32 bytes from the kernel's random number generator as 64 hexadecimal digits. Throws Error(system).
std::string make_admission_secret();

/// Shows @p secret (as made above) to the server at the numeric @p address. When it returns, the server admits clients
/// from the address that this connection came from. Throws Error: invalid_argument (no numeric address, or no such
/// secret), unavailable (nobody listens, or the way is blocked), peer_lost (the connection broke), timeout, conflict
/// (the server knows another secret) and protocol (it is something else).
void request_admission(const std::string& address, std::uint16_t port, const std::string& secret, Deadline deadline);

}  // namespace ddp::store_server
