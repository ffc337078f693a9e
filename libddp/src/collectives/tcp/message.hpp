// Messages as connections see them: bytes to send, or a place for bytes to come. Owned by the operation that they
// belong to; a connection links them into its queues while they wait, without allocating.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/tcp/frame.hpp"

namespace ddp::collectives::tcp {

struct Outgoing {
  Frame frame;  ///< all but bytes, credit and total, which the connection fills in
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t* left = nullptr;  ///< counted down when the kernel has all of it; may be null

  // the connection's
  Outgoing* next = nullptr;
  std::size_t taken = 0;        ///< bytes of data in frames before the present one
  std::size_t header_left = 0;  ///< of the present frame
  std::size_t payload_left = 0;
  bool begun = false;
  HeaderBytes header{};
};

struct Incoming {
  std::uint16_t context = 0;
  std::uint32_t step = 0;
  std::uint64_t ordinal = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t* left = nullptr;  ///< counted down when all has arrived; may be null

  // the connection's
  Incoming* next = nullptr;
  std::size_t received = 0;
  bool done = false;
};

}  // namespace ddp::collectives::tcp
