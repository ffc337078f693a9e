// Which entries of a host list mean the same host, and which mean this one: names with and without domain or in another
// case, aliases, and addresses.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "options/launch_options.hpp"

namespace ddp::launcher {

/// What is known of hosts, from the resolver and from this host's interfaces.
struct HostKnowledge {
  std::function<std::vector<std::string>(const std::string& host)> addresses;  ///< numeric; none: not known
  std::function<bool(const std::string& address)> is_own;
};

/// Makes one entry of those whose addresses meet, or that all mean this host, at the place of the first: their ranks
/// add up. Sets HostEntry::here. @return a remark where entries without numbers, so that the job has fewer ranks by
/// that, or other hosts' became one; else empty
std::string unite_hosts(std::vector<HostEntry>& hosts, const HostKnowledge& known);

/// The same with this host's resolver, which has a second for all names: those that it does not know by then stay
/// apart.
std::string unite_hosts(std::vector<HostEntry>& hosts);

}  // namespace ddp::launcher
