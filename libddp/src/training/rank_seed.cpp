#include <ddp/rank_seed.hpp>

namespace ddp {

std::uint64_t rank_seed(std::uint64_t seed, int rank) noexcept {
  std::uint64_t mixed = seed + (static_cast<std::uint64_t>(rank) + 1) * 0x9e37'79b9'7f4a'7c15U;
  mixed = (mixed ^ (mixed >> 30U)) * 0xbf58'476d'1ce4'e5b9U;
  mixed = (mixed ^ (mixed >> 27U)) * 0x94d0'49bb'1331'11ebU;
  return mixed ^ (mixed >> 31U);
}

}  // namespace ddp
