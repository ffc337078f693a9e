#include "support/checkout.hpp"

namespace ddp::test {

std::filesystem::path source_root() { return DDP_SOURCE_ROOT; }

std::string built_program(const std::string& name) { return std::filesystem::path(DDP_PROGRAM_FOLDER) / name; }

}  // namespace ddp::test
