#include "agent/store_reach.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "base/system_error.hpp"

namespace ddp::launcher {
namespace {

// Longer than a lost SYN takes to be sent again twice (1 s and 3 s, RFC 6298), so that one lost packet does not look
// like a firewall.
constexpr std::chrono::seconds kPerAddress{5};

}  // namespace

std::string reachable_store(const std::vector<std::string>& addresses, int port, Deadline deadline) {
  std::vector<std::string> tried;
  for (const std::string& address : addresses) {
    const Deadline limit = Deadline::after(kPerAddress);
    try {
      base::connect_tcp(address, static_cast<std::uint16_t>(port), limit.when() < deadline.when() ? limit : deadline);
      return address;
    } catch (const Error& error) {
      tried.push_back(fmt::format("{}:{}: {}", address, port,
                                  error.code() == ErrorCode::timeout ? "no answer" : error.detail().cause));
    }
  }
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "reaching the job's store",
               .cause = addresses.empty() ? "its host has no address but loopback"
                                          : fmt::format("no address answered ({})", fmt::join(tried, "; ")),
               .native = {},
               .ranks = {},
               .hint = "a firewall between the nodes? Ports above 1024 must be open between them; --local-addr on the "
                       "first node names another address"}};
}

std::vector<std::string> own_among(const std::vector<std::string>& addresses) {
  std::vector<std::string> own;
  for (const std::string& address : addresses) {
    try {
      base::listen_tcp(address);
    } catch (const Error& error) {
      if (error.native() == base::errno_name(EADDRNOTAVAIL) || error.native() == base::errno_name(EAFNOSUPPORT))
        continue;
    }
    own.push_back(address);
  }
  if (own.empty()) own.emplace_back("127.0.0.1");
  return own;
}

}  // namespace ddp::launcher
