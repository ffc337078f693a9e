// The loops of reductions for each set of vector instructions, and which set this process uses. All sets give the same
// bits, so ranks may use different ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace ddp::base {
class Environment;
}

namespace ddp::collectives {

/// out[i] = (sources[0][i] op ... op sources[n - 1][i]) / divisor; n >= 1. The divisor of integers is a whole number.
using ReduceLoop = void (*)(void* out, const void* const* sources, std::size_t n, std::size_t count, double divisor);

struct ReduceLoops {
  ReduceLoop sum;
  ReduceLoop product;
  ReduceLoop min;
  ReduceLoop max;
};

struct ReduceLoopsTable {
  ReduceLoops float32;
  ReduceLoops float64;
  ReduceLoops float16;
  ReduceLoops bfloat16;
  ReduceLoops int8;
  ReduceLoops int32;
  ReduceLoops int64;
  ReduceLoops uint8;
  ReduceLoops boolean;
};

/// For types that are rarely reduced on processors: for all sets alike.
struct RareReduceLoops {
  ReduceLoops uint32;
  ReduceLoops uint64;
  ReduceLoops float8_e4m3fn;
  ReduceLoops float8_e5m2;
};

enum class Simd : std::uint8_t {
  portable,  ///< what every processor of the architecture has: SSE2 on x86-64
  avx2,      ///< with F16C
  avx512,    ///< F, BW, DQ and VL
};
std::string_view to_string(Simd simd) noexcept;

/// What this processor has, best last.
std::vector<Simd> usable_simd();

/// @p simd must be usable.
const ReduceLoopsTable& reduce_loops(Simd simd) noexcept;
const ReduceLoopsTable& portable_reduce_loops() noexcept;
const RareReduceLoops& rare_reduce_loops() noexcept;
#ifdef __x86_64__
const ReduceLoopsTable& avx2_reduce_loops() noexcept;
const ReduceLoopsTable& avx512_reduce_loops() noexcept;
#endif

/// DDP_SIMD, else the best. A set that the processor lacks is replaced by the best, with a warning. Throws Error for a
/// word that is none.
Simd choose_simd(const base::Environment& environment);

/// This process's choice, made by the first call; later ones only read.
const ReduceLoopsTable& reduce_loops();

}  // namespace ddp::collectives
