#include "launch/host_identity.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/deadline.hpp>

#include "launch/host_agents.hpp"
#include "launch/own_network.hpp"

namespace ddp::launcher {
namespace {

// A healthy resolver answers hundreds of names in it.
constexpr std::chrono::seconds kUniteLimit{1};

/// How the list's first name of a host and this one are told apart in what follows.
constexpr const char* kHere = "this host";

}  // namespace

std::string unite_hosts(std::vector<HostEntry>& hosts, const HostKnowledge& known) {
  std::map<std::string, std::size_t> places;  // in `united`, by address
  std::vector<HostEntry> united;
  std::vector<std::string> same;
  for (HostEntry& host : hosts) {
    std::vector<std::string> addresses = known.addresses(host.name);
    host.here = is_this_host(host.name) || std::any_of(addresses.begin(), addresses.end(), known.is_own);
    if (host.here) addresses.emplace_back(kHere);
    const auto met = std::find_if(addresses.begin(), addresses.end(),
                                  [&](const std::string& address) { return places.contains(address); });
    const std::size_t place = met != addresses.end() ? places.at(*met) : united.size();
    for (const std::string& address : addresses) places.emplace(address, place);
    if (place == united.size()) {
      united.push_back(std::move(host));
      continue;
    }
    HostEntry& first = united[place];
    if (host.ranks == 0 || !host.here)
      same.push_back(fmt::format("'{}' is '{}'{}", host.name, first.name, host.here ? "" : fmt::format(" ({})", *met)));
    first.ranks = std::min(first.ranks + host.ranks, kMaxRanksPerNode);
    first.max_ranks = first.max_ranks > 0 && host.max_ranks > 0 ? first.max_ranks + host.max_ranks : 0;
  }
  hosts = std::move(united);
  return same.empty() ? std::string{}
                      : fmt::format("the host list names hosts twice, which count as one: {}", fmt::join(same, ", "));
}

std::string unite_hosts(std::vector<HostEntry>& hosts) {
  const Deadline deadline = Deadline::after(kUniteLimit);
  const std::vector<std::string> own = own_addresses();
  return unite_hosts(hosts,
                     {.addresses =
                          [&](const std::string& host) {
                            return deadline.expired() ? std::vector<std::string>{} : numeric_addresses(host, deadline);
                          },
                      .is_own =
                          [&](const std::string& address) {
                            return is_loopback(address) || std::find(own.begin(), own.end(), address) != own.end();
                          }});
}

}  // namespace ddp::launcher
