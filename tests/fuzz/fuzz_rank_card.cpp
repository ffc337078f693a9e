// What another rank may have published as its card. Whatever the bytes, decoding throws ddp::Error or gives a card that
// is encoded to the same bytes again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include <ddp/error.hpp>

#include "world/rank_card.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span{data, size});
  try {
    const ddp::world::RankCard card = ddp::world::decode_rank_card(bytes);
    if (size > ddp::world::kLargestCardBytes) return 0;  // it could be read, but would not have been published
    const ddp::Bytes again = ddp::world::encode(card);
    require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
  }
  return 0;
}
