// Reads the documents of EnvironmentReport::to_json().
#pragma once

#include <string>
#include <string_view>

#include <ddp/diagnostics.hpp>

namespace ddp::tools::env {

/// Throws Error(protocol) with one line for what is no such document. @param name of the file, for errors
EnvironmentReport parse_dump(std::string_view text, const std::string& name);

/// The same of a file. Throws Error(system), too.
EnvironmentReport read_dump(const std::string& path);

}  // namespace ddp::tools::env
