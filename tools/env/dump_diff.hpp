// What differs between two environment reports.
#pragma once

#include <string>

#include <ddp/diagnostics.hpp>

namespace ddp::tools::env {

/// Lines of '-' (only in @p a) and '+' (only in @p b), ordered by variable; "no differences" if there is none. Values
/// that all ranks have are compared as they are, so jobs of different sizes can be; numbers of ranks and jobs are left
/// out.
std::string format_diff(const EnvironmentReport& a, const EnvironmentReport& b);

}  // namespace ddp::tools::env
