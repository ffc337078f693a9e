// The loops of reductions for what every processor of the architecture has.
#include "collectives/reduce_loops.hpp"

namespace ddp::collectives {
namespace {

constexpr RareReduceLoops kRareLoops{
    .uint32 = loops_of<std::uint32_t>(),
    .uint64 = loops_of<std::uint64_t>(),
    .float8_e4m3fn = loops_of<Float8E4M3>(),
    .float8_e5m2 = loops_of<Float8E5M2>(),
};

}  // namespace

const ReduceLoopsTable& portable_reduce_loops() noexcept { return kLoops; }
const RareReduceLoops& rare_reduce_loops() noexcept { return kRareLoops; }

}  // namespace ddp::collectives
