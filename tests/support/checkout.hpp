// Where this checkout and what was built of it are, in one object: what else tests compile to is the same in every
// checkout, which a compiler cache makes use of.
#pragma once

#include <filesystem>
#include <string>

namespace ddp::test {

/// The root of the sources.
std::filesystem::path source_root();

/// A file of this build, such as "lib/libddp.so".
std::string built_file(const std::string& path);

/// A program of this build, such as "ddp-step".
std::string built_program(const std::string& name);

}  // namespace ddp::test
