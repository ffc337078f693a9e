// What a node says that joins, for tests of memberships.
#pragma once

#include "coordinator/membership_plan.hpp"

namespace ddp::launcher {

inline control::Hello hello(const std::string& host, std::int64_t order = -1, const std::string& program = "train.py") {
  return {.version = "1.0",
          .run_id = "run",
          .host = host,
          .order = order,
          .nproc = 2,
          .role = "default",
          .program = program,
          .pid = 7};
}

}  // namespace ddp::launcher
