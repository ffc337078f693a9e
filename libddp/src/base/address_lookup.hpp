// getaddrinfo(3) with an owner, and errors as ddp::Error.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <string>

namespace ddp::base {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// All TCP addresses of @p host, in the resolver's order and within its time limits; @p flags of getaddrinfo(3).
/// Throws Error(invalid_argument).
AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted);

}  // namespace ddp::base
