#include "support/checkout.hpp"

namespace ddp::test {

std::filesystem::path source_root() { return DDP_SOURCE_ROOT; }

std::string built_file(const std::string& path) { return std::filesystem::path(DDP_BUILD_FOLDER) / path; }

std::string built_program(const std::string& name) { return built_file("bin/" + name); }

}  // namespace ddp::test
