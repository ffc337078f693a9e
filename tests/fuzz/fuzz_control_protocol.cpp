// What strangers may send to a launcher's port, and a broken agent once it has authenticated: greetings and frames.
// Whatever the bytes, the parsers want more, throw ddp::Error, or give a value that survives a round trip; and frames
// do not depend on the pieces in which bytes arrive.
#include "control/connection.hpp"
#include "control/handshake.hpp"
#include "control/messages.hpp"
#include "fuzz/fuzz.hpp"
#include "stream/secret.hpp"

namespace {

using namespace ddp::launcher::control;
using namespace ddp::stream;

constexpr std::size_t kLimit = 4096;

/// @return whether nothing was thrown.
template <class Action>
bool tolerate_protocol_error(Action&& action) {
  try {
    action();
    return true;
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
    return false;
  }
}

void check_greeting(std::span<const std::byte> bytes) {
  tolerate_protocol_error([&] {
    const auto greeting = parse_greeting(ddp::launcher::control::kProtocol, bytes);
    require(greeting.has_value() == (bytes.size() >= kGreetingBytes));
    if (!greeting) return;
    const ddp::Bytes again = encode(ddp::launcher::control::kProtocol, *greeting);
    require(std::equal(again.begin(), again.end(), bytes.begin()));
  });
}

void check_announcement(std::span<const std::byte> bytes) {
  if (bytes.size() < kAnnouncementBytes) return;
  const auto received = bytes.first(kAnnouncementBytes);
  tolerate_protocol_error([&] {
    const ddp::Bytes again = encode(parse_announcement(received));
    require(std::equal(again.begin(), again.end(), received.begin()));
  });
}

void check_proof(std::span<const std::byte> bytes) {
  if (bytes.size() < kProofHeaderBytes) return;
  tolerate_protocol_error([&] {
    const std::size_t length = proof_length(bytes);
    require(length <= kMaxProofBytes);
    const auto proof = bytes.subspan(kProofHeaderBytes, std::min(length, bytes.size() - kProofHeaderBytes));
    require(proof_length(with_length(proof)) == proof.size());
  });
}

/// Nothing that was not sealed with the connection's keys is a message.
void check_sealed(std::span<const std::byte> bytes) {
  static const EphemeralKey one;
  static const EphemeralKey other;
  SessionCipher receiving = one.agree(HandshakeSide::connecting, other.public_key());
  require(!tolerate_protocol_error([&] { receiving.open(bytes); }));
  SessionCipher sending = other.agree(HandshakeSide::accepting, one.public_key());
  const ddp::Bytes plain = receiving.open(sending.seal(bytes));
  require(std::equal(plain.begin(), plain.end(), bytes.begin(), bytes.end()));
}

struct Frames {
  std::vector<ddp::Bytes> whole;
  bool refused = false;
  bool operator==(const Frames&) const = default;
};

Frames frames_of(std::span<const std::byte> bytes, std::size_t step) {
  FrameBuffer buffer{kLimit};
  Frames frames;
  for (std::size_t at = 0; at < bytes.size() && !frames.refused; at += step) {
    buffer.append(bytes.subspan(at, std::min(step, bytes.size() - at)));
    frames.refused = !tolerate_protocol_error([&] {
      while (auto next = buffer.next()) {
        require(next->size() <= kLimit);
        frames.whole.push_back(*std::move(next));
      }
    });
  }
  return frames;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span{data, size});
  check_greeting(bytes);
  check_announcement(bytes);
  check_proof(bytes);
  check_sealed(bytes);
  const Frames at_once = frames_of(bytes, std::max<std::size_t>(size, 1));
  for (const std::size_t step : {std::size_t{1}, std::size_t{3}, std::size_t{64}}) {
    require(frames_of(bytes, step) == at_once);
  }
  return 0;
}
