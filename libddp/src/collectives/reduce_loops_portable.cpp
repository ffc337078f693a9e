// The loops of reductions for what every processor of the architecture has.
#include "collectives/reduce_loops.hpp"

namespace ddp::collectives {

const ReduceLoopsTable& portable_reduce_loops() noexcept { return kLoops; }

}  // namespace ddp::collectives
