#include "collectives/reduce_loops_table.hpp"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/env_table.hpp"
#include "base/log.hpp"

namespace ddp::collectives {
namespace {

#ifdef __x86_64__
/// Compilers' __builtin_cpu_supports checks that the system saves the registers, too, but not all know F16C.
bool has_f16c() {
  unsigned int a = 0;
  unsigned int b = 0;
  unsigned int c = 0;
  unsigned int d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

std::string_view to_string(Simd simd) noexcept {
  switch (simd) {
    case Simd::portable: return "portable";
    case Simd::avx2: return "avx2";
    case Simd::avx512: return "avx512";
  }
  return "unknown";
}

std::vector<Simd> usable_simd() {
  std::vector<Simd> usable{Simd::portable};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && has_f16c()) {
    usable.push_back(Simd::avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      usable.push_back(Simd::avx512);
    }
  }
#endif
  return usable;
}

const ReduceLoopsTable& reduce_loops(Simd simd) noexcept {
#ifdef __x86_64__
  if (simd == Simd::avx2) return avx2_reduce_loops();
  if (simd == Simd::avx512) return avx512_reduce_loops();
#endif
  (void)simd;
  return portable_reduce_loops();
}

Simd choose_simd(const base::Environment& environment) {
  const std::vector<Simd> usable = usable_simd();
  const std::string wanted = environment.text("DDP_SIMD");
  for (const Simd simd : usable) {
    if (wanted == to_string(simd)) return simd;
  }
  if (wanted != "auto") {
    base::log(base::LogLevel::warning, "DDP_SIMD={}: this processor lacks it; using {}", wanted,
              to_string(usable.back()));
  }
  return usable.back();
}

const ReduceLoopsTable& reduce_loops() {
  static const ReduceLoopsTable& chosen = reduce_loops(choose_simd(base::Environment::process()));
  return chosen;
}

}  // namespace ddp::collectives
