// The packets that others may send to the socket of a rank that shares memory. Whatever the bytes, they are refused, or
// give a value that is written as the same bytes again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include <ddp/error.hpp>

#include "collectives/shm/endpoint.hpp"
#include "collectives/shm/join_message.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::collectives::shm;
  const auto bytes = std::as_bytes(std::span{data, size});
  JoinMessage message;
  if (JoinMessage::parse(bytes, message)) {
    // the text ends at its first zero
    JoinMessage again;
    require(JoinMessage::parse(message.pack(), again));
    require(again.pack() == message.pack() && again.ranks == message.ranks && again.text == message.text);
  }
  return 0;
}
