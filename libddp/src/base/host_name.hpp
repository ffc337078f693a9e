// The name of this host, for messages and for telling nodes apart.
#pragma once

#include <string>

namespace ddp::base {

/// gethostname(2); "localhost" where that fails.
std::string host_name();

}  // namespace ddp::base
