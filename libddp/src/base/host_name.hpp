// The name of this host, for messages and for telling nodes apart.
#pragma once

#include <string>
#include <string_view>

namespace ddp::base {

/// gethostname(2); "localhost" where that fails.
std::string host_name();

/// Host names have no case (RFC 4343).
bool same_host_name(std::string_view one, std::string_view other);

}  // namespace ddp::base
