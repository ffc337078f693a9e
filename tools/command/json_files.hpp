// The *.json of a folder that ranks have written to.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ddp::tools {

/// The only one of @p words. Throws cli::UsageError with @p hint, which folder to give.
std::string one_folder(const std::vector<std::string>& words, const std::string& hint);

/// By name. @param hint for people whose folder cannot be read. Throws Error(system).
std::vector<std::filesystem::path> list_json_files(const std::string& folder, const std::string& hint);

/// Throws Error: system, protocol for a file larger than any that a rank writes (256 MiB).
std::string read_json_file(const std::filesystem::path& path);

}  // namespace ddp::tools
