// What anybody who reaches a rank's port may send. Whatever the bytes, the decoders say "not yet", throw ddp::Error, or
// give a message that is encoded to the same bytes again; and every beginning of a whole message is "not yet".
#include "fuzz/fuzz.hpp"
#include "world/peer_wire.hpp"

namespace {

/// @return whether @p bytes were a whole message.
template <class Decode>
bool check(std::span<const std::byte> bytes, Decode decode) {
  try {
    const auto message = decode(bytes);
    if (!message) {
      require(bytes.size() < ddp::world::kLargestPeerMessageBytes + 64);
      return false;
    }
    const ddp::Bytes again = encode(*message);
    require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
    return true;
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
    return false;
  }
}

/// The token is the one of the whole request, and known as soon as the header is there.
void check_token(std::span<const std::byte> bytes, bool is_request) {
  using namespace ddp::world;
  std::optional<ChannelToken> token;
  try {
    token = decode_peer_token(bytes);
    require(token.has_value() == (bytes.size() >= kPeerRequestHeaderBytes));
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
    require(!is_request);
  }
  if (is_request) require(token == decode_peer_request(bytes)->token);
}

template <class Decode>
void check_beginnings(std::span<const std::byte> whole, Decode decode) {
  const std::size_t step = whole.size() / 64 + 1;
  for (std::size_t size = 0; size < whole.size(); size += step) require(!decode(whole.first(size)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::world;
  const auto bytes = std::as_bytes(std::span{data, size});
  const bool is_request = check(bytes, decode_peer_request);
  check_token(bytes, is_request);
  if (is_request) check_beginnings(bytes, decode_peer_request);
  if (check(bytes, decode_peer_answer)) check_beginnings(bytes, decode_peer_answer);
  return 0;
}
