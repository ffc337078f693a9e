// What a rank says about itself to those that decide with whom it shares memory. Whatever the bytes, parsing throws
// ddp::Error or gives an address that stays the same, and whose rank is in its own domain or that of the other.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include <ddp/error.hpp>

#include "collectives/host/rank_address.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::collectives;
  const auto bytes = std::as_bytes(std::span{data, size});
  try {
    const auto address = host::RankAddress::parse({bytes.begin(), bytes.end()});
    if (address.pack() != ddp::Bytes(bytes.begin(), bytes.end())) std::abort();
    const host::RankAddress other{
        .domain = "", .memory_left = 8U << 20U, .shared_memory = shm::EndpointAddress{}.pack()};
    const host::Domains domains = host::find_domains({other, address}, {0, 0});
    if (domains.leaders[0] != 0 || domains.leaders[1] < 0 || domains.leaders[1] > 1) std::abort();
    if (domains.reasons[1].empty() != (domains.leaders[1] == 0)) std::abort();
  } catch (const ddp::Error& error) {
    if (error.code() != ddp::ErrorCode::protocol) std::abort();
  }
  return 0;
}
