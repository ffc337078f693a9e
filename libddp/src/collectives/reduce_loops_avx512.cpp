// The loops of reductions for AVX-512 F, BW, DQ and VL (Intel servers since 2017, AMD since 2022).
#include "collectives/reduce_loops.hpp"

namespace ddp::collectives {

const ReduceLoopsTable& avx512_reduce_loops() noexcept { return kLoops; }

}  // namespace ddp::collectives
