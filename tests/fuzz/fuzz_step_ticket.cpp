// What a task reads of other processes: the ticket in its environment ('t' first) and the answer of ddp-step ('a');
// what ddp-step is asked ('q'), for which resources ('s') of each rank ('r'), and what its agent has found ('f').
// Whatever the bytes, reading throws ddp::Error or gives something that is written to the same bytes again.
#include "fuzz/fuzz.hpp"
#include "srun_side/plugin_options.hpp"
#include "step_program/node_planner.hpp"
#include "task_side/node_questions.hpp"
#include "topology/placement/rank_resources.hpp"

namespace {

using namespace ddp::srun_plugin;

void require_same(std::span<const std::byte> bytes, const ddp::Bytes& again) {
  require(std::equal(bytes.begin(), bytes.end(), again.begin(), again.end()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span{data, size}.subspan(1));
  try {
    switch (data[0]) {
      case 't': {
        const StepTicket ticket = parse_ticket({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        require(parse_ticket(encode(ticket)) == ticket);  // ports may be written with zeros in front
        break;
      }
      case 'a': require_same(bytes, ddp::base::encode(ddp::base::decode<NodeAnswer>(bytes))); break;
      case 'q': require_same(bytes, ddp::base::encode(ddp::base::decode<NodeQuestion>(bytes))); break;
      case 's': require_same(bytes, ddp::base::encode(ddp::base::decode<NodeResources>(bytes))); break;
      case 'f': require_same(bytes, ddp::base::encode(ddp::base::decode<NodeFindings>(bytes))); break;
      case 'r': {  // and names twice
        const ddp::Bytes once = encode(ddp::topology::decode_resources(bytes));
        require_same(once, encode(ddp::topology::decode_resources(once)));
        break;
      }
      default: break;
    }
  } catch (const ddp::Error& error) {
    const bool value = data[0] != 't' && error.code() == ddp::ErrorCode::invalid_argument;
    require(value || error.code() == ddp::ErrorCode::protocol);
  }
  return 0;
}
