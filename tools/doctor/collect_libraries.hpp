// Digests by which libraries and other files of several nodes are compared: no protection against intent.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace ddp::tools::doctor {

/// Of the bytes: FNV-1a with 64 bits, hexadecimal.
std::string digest_of(std::string_view bytes);

/// Of the lines of a file, without comments ('#'), white space at their ends and empty ones. Empty: no such file.
std::string digest_of_lines(const std::filesystem::path& file);

}  // namespace ddp::tools::doctor
