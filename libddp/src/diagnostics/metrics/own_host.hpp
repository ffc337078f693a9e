// Names by which a host is asked for its own pages. A browser on the host, or in its network, sends the name of the
// page that it shows: one that an attacker has made lead here (DNS rebinding) is none of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp::diagnostics {

/// The host's domains: of its name, and those of /etc/resolv.conf. In lower case.
std::vector<std::string> own_domains();
/// Those of a text in the form of /etc/resolv.conf.
std::vector<std::string> domains_in(std::string_view resolver);

/// Whether a Host header's value, with or without port, is an address, localhost, a name without a domain, or one in
/// @p domains.
bool is_own_host(std::string_view host, const std::vector<std::string>& domains);

}  // namespace ddp::diagnostics
