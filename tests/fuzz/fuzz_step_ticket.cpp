// What a task reads of other processes: the ticket in its environment ('t' first), the plan of ddp-step ('p'), what
// ddp-step is asked ('q') and told of each rank ('r'), and what nodes tell each other of their networks ('n', and 'd'
// for the decision); and what they tell srun's side of themselves ('s'), of their ranks' ends ('e') and steps ('l'),
// and while the step runs ('w'). Whatever the bytes, reading throws ddp::Error or gives something that is written to
// the same bytes again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include <ddp/error.hpp>

#include "srun_side/step_ticket.hpp"
#include "step_program/node_report.hpp"
#include "step_program/step_news.hpp"
#include "task_side/network_notes.hpp"
#include "task_side/node_plan.hpp"
#include "task_side/step_notes.hpp"
#include "topology/placement/rank_resources.hpp"

namespace {

using namespace ddp::srun_plugin;

void require(bool condition) {
  if (!condition) std::abort();
}

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
      case 'p': {
        // Lists of processors can be written in several ways.
        const ddp::Bytes once = encode(decode_plan(bytes));
        require_same(once, encode(decode_plan(once)));
        break;
      }
      case 'q': require_same(bytes, encode(decode_question(bytes))); break;
      case 'r': {  // and names twice
        const ddp::Bytes once = encode(ddp::topology::decode_resources(bytes));
        require_same(once, encode(ddp::topology::decode_resources(once)));
        break;
      }
      case 'n': require_same(bytes, encode(decode_note(bytes))); break;
      case 'd': {  // bits of a subnet that there is not
        const ddp::Bytes once = encode(decode_decision(bytes));
        require_same(once, encode(decode_decision(once)));
        break;
      }
      case 's': require_same(bytes, encode(decode_step_note(bytes))); break;
      case 'e': require_same(bytes, encode(decode_rank_end(bytes))); break;
      case 'w': require_same(bytes, encode(decode_news(bytes))); break;
      case 'l': {  // and more ranks than are written
        const ddp::Bytes once = encode(decode_report(bytes));
        require_same(once, encode(decode_report(once)));
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
