// ddprun as a task of `srun --ddp`, which has prepared it as if it were a rank.
#pragma once

namespace ddp::launcher {

/// Takes back what `srun --ddp` has set for this process: torchrun's variables, settings, cores and memory policy. Does
/// nothing elsewhere. Call it before anything reads the environment and while there is one thread.
void leave_surrounding_step() noexcept;

}  // namespace ddp::launcher
