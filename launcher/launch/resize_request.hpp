// What ddp-info resize asks of a running job, through the job's file and its coordinator's listener.
#pragma once

#include <string>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"

namespace ddp::launcher {

struct ResizeRequest {
  std::string job_file{};
  int nodes = 0;        ///< so many are to take part; 0: as before
  int spares = -1;      ///< so many are to wait besides; -1: as before
  std::string drain{};  ///< the host whose node is to leave; empty: none
};

/// Proves to the job that its user asks. @return what follows. Throws Error: as read_job_file(); not_found without the
/// file; unavailable where the job does not answer; conflict where it refuses.
std::string ask_for_resize(const ResizeRequest& request, const base::Environment& environment, Deadline deadline);

}  // namespace ddp::launcher
