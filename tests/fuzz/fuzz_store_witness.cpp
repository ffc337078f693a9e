// What may arrive from what says that it is of the job: the handshake, by the store's side and by a witness's. The
// input is a byte that says how the rest is cut into pieces, one that says which side hears it, and what comes.
// Whatever that is, the side does not believe it, reads nothing beyond a message, and nothing is a sealed message.
#include "fuzz/fuzz.hpp"
#include "store_server/witness_protocol.hpp"

namespace {

using namespace ddp;
using namespace ddp::store_server;

void hear(stream::Handshake& handshake, std::span<const std::byte> input, std::size_t piece_size) {
  while (!input.empty()) {
    handshake.answer();
    const std::size_t due = handshake.due();
    require(due > 0 && due <= stream::kProofHeaderBytes + stream::kMaxProofBytes);
    // a buffer of its own, so that a read past its end is found
    const std::vector<std::byte> piece(
        input.begin(), input.begin() + static_cast<std::ptrdiff_t>(std::min({piece_size, due, input.size()})));
    input = input.subspan(piece.size());
    handshake.take(piece);
    require(!handshake.proven());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  static const StoreKey key = StoreKey::parse("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
  const auto input = std::as_bytes(std::span{data + 2, size - 2});
  try {
    if (data[1] % 2 == 0) {
      hear(*accept_witness(key), input, 1 + std::size_t{data[0]});
    } else {
      stream::Handshake witness(kWitnessProtocol, {}, stream::job_secret_provers(stream::Secret::of(key.bytes())));
      hear(witness, input, 1 + std::size_t{data[0]});
    }
  } catch (const Error& error) {
    require(error.code() == ErrorCode::protocol || error.code() == ErrorCode::conflict);
  }
  stream::SealedMessages sealed({{}, {}}, kMostWitnessBytes);
  try {
    sealed.append(input);
    require(!sealed.next());
  } catch (const Error& error) {
    require(error.code() == ErrorCode::protocol);
  }
  return 0;
}
