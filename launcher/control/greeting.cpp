// Greetings and proofs, with libsodium's random numbers and HMAC.
#include "control/greeting.hpp"

#include <sodium.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/error.hpp>

namespace ddp::launcher::control {
namespace {

using namespace std::string_view_literals;

// No text protocol begins with it, and its line end shows whether something on the way rewrites lines.
constexpr auto kMagic = "ddpctl\r\n"sv;
static_assert(kMagic.size() == 8);
static_assert(kProofBytes == crypto_auth_BYTES);
static_assert(std::tuple_size_v<decltype(Nonce{})> == crypto_auth_KEYBYTES);

std::vector<std::uint8_t> proven_text(HandshakeSide side, const Greeting& connecting, const Greeting& accepting) {
  const std::string_view name = side == HandshakeSide::accepting ? "the accepting side"sv : "the connecting side"sv;
  std::vector<std::uint8_t> text;
  for (const Greeting& greeting : {connecting, accepting}) {
    const GreetingBytes bytes = encode(greeting);
    std::transform(bytes.begin(), bytes.end(), std::back_inserter(text), std::to_integer<std::uint8_t>);
  }
  text.insert(text.end(), name.begin(), name.end());
  return text;
}

}  // namespace

Greeting Greeting::fresh() {
  Greeting greeting;
  ::randombytes_buf(greeting.nonce.data(), greeting.nonce.size());
  return greeting;
}

GreetingBytes encode(const Greeting& greeting) {
  GreetingBytes bytes{};
  auto* out = bytes.data();
  for (const char c : kMagic) *out++ = static_cast<std::byte>(c);
  for (const unsigned shift : {24U, 16U, 8U, 0U}) *out++ = static_cast<std::byte>(greeting.version >> shift & 0xFFU);
  for (const std::uint8_t byte : greeting.nonce) *out++ = static_cast<std::byte>(byte);
  return bytes;
}

std::optional<Greeting> parse_greeting(std::span<const std::byte> received) {
  const auto begin = received.first(std::min(received.size(), kMagic.size()));
  const auto same = [](std::byte byte, char c) { return byte == static_cast<std::byte>(c); };
  if (!std::equal(begin.begin(), begin.end(), kMagic.begin(), kMagic.begin() + begin.size(), same)) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading a greeting",
                 .cause = "it does not speak ddprun's protocol",
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  if (received.size() < kGreetingBytes) return std::nullopt;
  Greeting greeting{.version = 0, .nonce = {}};
  for (const std::byte byte : received.subspan(kMagic.size(), 4)) {
    greeting.version = greeting.version << 8U | std::to_integer<std::uint32_t>(byte);
  }
  const auto nonce = received.subspan(kMagic.size() + 4, greeting.nonce.size());
  std::transform(nonce.begin(), nonce.end(), greeting.nonce.begin(), std::to_integer<std::uint8_t>);
  return greeting;
}

Proof prove(const Secret& secret, HandshakeSide side, const Greeting& connecting, const Greeting& accepting) {
  const std::vector<std::uint8_t> text = proven_text(side, connecting, accepting);
  Proof proof{};
  ::crypto_auth(reinterpret_cast<unsigned char*>(proof.data()), text.data(), text.size(), secret.bytes().data());
  return proof;
}

bool proves(const Proof& proof, const Secret& secret, HandshakeSide side, const Greeting& connecting,
            const Greeting& accepting) {
  const std::vector<std::uint8_t> text = proven_text(side, connecting, accepting);
  return ::crypto_auth_verify(reinterpret_cast<const unsigned char*>(proof.data()), text.data(), text.size(),
                              secret.bytes().data()) == 0;
}

}  // namespace ddp::launcher::control
