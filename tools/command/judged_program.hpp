// Whose NCCL ddp-info judges: not its own, as it loads none, but that of the program that ranks run or would run.
#pragma once

#include <string>

#include "base/library_search.hpp"

namespace ddp::tools {

/// @param program that a launcher names, with its path or as PATH finds it. Where that is no Python, or is empty: the
/// Python that ddprun takes (PYTHON_EXEC, else python3 or python in PATH), if it has PyTorch.
base::NcclSurroundings surroundings_of_program(const base::Environment& environment, const std::string& program = {});

}  // namespace ddp::tools
