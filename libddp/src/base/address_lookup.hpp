// getaddrinfo(3) with an owner, a deadline, and errors as ddp::Error.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <string>

#include <ddp/deadline.hpp>

namespace ddp::base {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// All TCP addresses of @p host, in the resolver's order; @p flags of getaddrinfo(3). Throws Error: invalid_argument,
/// or timeout when the resolver does not answer by @p deadline, or within 30 s.
AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted,
                    Deadline deadline);
AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted);

}  // namespace ddp::base
