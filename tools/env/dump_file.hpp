// The documents of EnvironmentReport::to_json(): read, and compared.
#pragma once

#include <string>
#include <string_view>

#include <ddp/diagnostics.hpp>

namespace ddp::tools::env {

/// Throws Error(protocol) with one line for what is no such document. @param name of the file, for errors
EnvironmentReport parse_dump(std::string_view text, const std::string& name);

/// The same of a file. Throws Error(system), too.
EnvironmentReport read_dump(const std::string& path);

/// Lines of '-' (only in @p a) and '+' (only in @p b), ordered by variable; "no differences" if there is none. Values
/// that all ranks have are compared as they are, so jobs of different sizes can be; numbers of ranks and jobs are left
/// out.
std::string format_diff(const EnvironmentReport& a, const EnvironmentReport& b);

}  // namespace ddp::tools::env
