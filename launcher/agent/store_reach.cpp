#include "agent/store_reach.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"
#include "store_server/peer_address.hpp"

namespace ddp::launcher {
namespace {

// Longer than a lost SYN takes to be sent again twice (1 s and 3 s, RFC 6298), so that one lost packet does not look
// like a firewall.
constexpr std::chrono::seconds kPerAddress{5};

}  // namespace

ReachableStore reach_store(const std::vector<std::string>& addresses, int port, const store_server::StoreKey& key,
                           Deadline deadline) {
  const auto number = static_cast<std::uint16_t>(port);
  store_server::OwnAddresses own;
  const auto is_own = [&own](const std::string& text) {
    const auto address = store_server::PeerAddress::parse(text);
    return address && own.contain(*address);
  };
  const bool same_host = std::all_of(addresses.begin(), addresses.end(), is_own);
  std::vector<std::string> tried;
  for (const std::string& address : addresses) {
    if (!same_host && is_own(address)) {
      tried.push_back(fmt::format("{}: this node has that address, too", address));
      continue;
    }
    try {
      const Deadline limit = earlier(deadline, Deadline::after(kPerAddress));
      auto witness = std::make_unique<store_server::Witness>(address, number, key, limit);
      store_server::check_served(address, number, limit);
      return {.address = address, .witness = std::move(witness)};
    } catch (const Error& error) {
      tried.push_back(fmt::format("{}:{}: {}", address, port,
                                  error.code() == ErrorCode::timeout ? "no answer" : error.detail().cause));
    }
  }
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "reaching the job's store",
               .cause = addresses.empty()
                            ? "its host has no address but loopback"
                            : fmt::format("it serves this node at no address ({})", fmt::join(tried, "; ")),
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
