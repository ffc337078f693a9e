// What members of a group tell each other when something fails. Whatever the bytes, the decoders throw ddp::Error or
// give a message that means the same after another round trip.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include <ddp/error.hpp>

#include "collectives/group_status.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Action>
void tolerate_protocol_error(Action&& action) {
  try {
    action();
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::collectives;
  const auto bytes = std::as_bytes(std::span{data, size});
  tolerate_protocol_error([&] {
    const auto message = decode_group_message(bytes);
    if (const auto* question = std::get_if<StatusQuestion>(&message)) {
      require(std::get<StatusQuestion>(decode_group_message(encode(*question))).sequence == question->sequence);
    } else if (const auto* proposal = std::get_if<Proposal>(&message)) {
      require(encode(std::get<Proposal>(decode_group_message(encode(*proposal)))) == encode(*proposal));
    } else {
      const auto& verdict = std::get<Verdict>(message);
      require(verdict.error.ranks().size() <= size);
      require(encode(std::get<Verdict>(decode_group_message(encode(verdict)))) == encode(verdict));
    }
  });
  tolerate_protocol_error([&] {
    const StatusAnswer answer = decode_status_answer(bytes);
    require(answer.description.size() <= size);
    require(encode(decode_status_answer(encode(answer))) == encode(answer));
  });
  tolerate_protocol_error([&] {
    const ProposalAnswer answer = decode_proposal_answer(bytes);
    require(encode(decode_proposal_answer(encode(answer))) == encode(answer));
  });
  return 0;
}
