// ddp-step before: becomes ddp-info, with the environment that the task's program will have.
#pragma once

#include <span>

namespace ddp::srun_plugin {

/// @param words for `ddp-info before`. The environment comes on standard input, as in /proc/PID/environ. Returns only
/// where it fails, having said why.
int become_ddp_info(std::span<char* const> words);

}  // namespace ddp::srun_plugin
