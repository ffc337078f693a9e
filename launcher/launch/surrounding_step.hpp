// ddprun as a task of `srun --ddp`, which has prepared it as if it were a rank.
#pragma once

namespace ddp::launcher {

/// Undoes what `srun --ddp` set for this process: torchrun's variables, settings, cores and memory policy; nothing
/// elsewhere. Call it before anything reads the environment, and with a single thread.
void leave_surrounding_step() noexcept;

}  // namespace ddp::launcher
