// Whether a command is one rank of a job, or has a machine to itself.
#pragma once

#include "base/env_table.hpp"

namespace ddp::tools {

/// Whether World::init would find a launcher. Throws as detect_launch does, with a hint of --no-job.
bool is_launched(const base::Environment& environment);

}  // namespace ddp::tools
