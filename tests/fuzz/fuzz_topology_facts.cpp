// The state of network interfaces and GPUs in a recorded machine, which somebody may have edited. Whatever the text,
// reading throws ddp::Error or gives facts that mean the same after another round trip.
#include "fuzz/fuzz.hpp"
#include "topology/inventory/live_facts.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::topology;
  std::string written;
  try {
    written = to_json(facts_from_json(std::string_view{reinterpret_cast<const char*>(data), size}));
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::invalid_argument);
    return 0;
  }
  require(to_json(facts_from_json(written)) == written);
  return 0;
}
