// The client's side of an admission request: has a TCPStore server that requires a secret admit this host.
#pragma once

#include <cstdint>
#include <string>

#include <ddp/deadline.hpp>

namespace ddp::store_server {

/// 32 bytes of getrandom(2) as 64 hexadecimal digits. Throws Error(system).
std::string make_admission_secret();

/// Shows @p secret (see make_admission_secret()) to the server at the numeric @p address. On return, the server admits
/// clients from the address of this connection. Throws Error: invalid_argument (address not numeric, or secret
/// malformed), unavailable (refused, or blocked), peer_lost, timeout, conflict (the server has another secret),
/// protocol (it is another kind of server).
void request_admission(const std::string& address, std::uint16_t port, const std::string& secret, Deadline deadline);

}  // namespace ddp::store_server
