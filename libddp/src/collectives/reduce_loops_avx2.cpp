// The loops of reductions for AVX2 and F16C (Intel since 2013, AMD since 2015).
#include "collectives/reduce_loops.hpp"

namespace ddp::collectives {

const ReduceLoopsTable& avx2_reduce_loops() noexcept { return kLoops; }

}  // namespace ddp::collectives
