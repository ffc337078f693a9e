#include "control/greeting.hpp"

#include <sodium.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "control/protocol_error.hpp"

namespace ddp::launcher::control {
namespace {

using namespace std::string_view_literals;

// No text protocol begins with it, and its line end shows whether something on the way rewrites lines.
constexpr auto kMagic = "ddpctl\r\n"sv;
static_assert(kMagic.size() == 8);
static_assert(std::tuple_size_v<PublicKey> == crypto_kx_PUBLICKEYBYTES);
static_assert(std::tuple_size_v<Statement> == crypto_generichash_BYTES);

}  // namespace

GreetingBytes encode(const Greeting& greeting) {
  GreetingBytes bytes{};
  auto* out = bytes.data();
  for (const char c : kMagic) *out++ = static_cast<std::byte>(c);
  for (const unsigned shift : {24U, 16U, 8U, 0U}) *out++ = static_cast<std::byte>(greeting.version >> shift & 0xFFU);
  for (const std::uint8_t byte : greeting.key) *out++ = static_cast<std::byte>(byte);
  return bytes;
}

std::optional<Greeting> parse_greeting(std::span<const std::byte> received) {
  const auto begin = received.first(std::min(received.size(), kMagic.size()));
  const auto same = [](std::byte byte, char c) { return byte == static_cast<std::byte>(c); };
  if (!std::equal(begin.begin(), begin.end(), kMagic.begin(), kMagic.begin() + begin.size(), same))
    refuse("reading a greeting", "it does not speak ddprun's protocol");
  if (received.size() < kGreetingBytes) return std::nullopt;
  Greeting greeting;
  for (const std::byte byte : received.subspan(kMagic.size(), 4)) {
    greeting.version = greeting.version << 8U | std::to_integer<std::uint32_t>(byte);
  }
  const auto key = received.subspan(kMagic.size() + 4, greeting.key.size());
  std::transform(key.begin(), key.end(), greeting.key.begin(), std::to_integer<std::uint8_t>);
  return greeting;
}

AnnouncementBytes encode(const Announcement& announcement) {
  AnnouncementBytes bytes{static_cast<std::byte>(announcement.method)};
  std::transform(announcement.salt.begin(), announcement.salt.end(), bytes.begin() + 1,
                 [](std::uint8_t byte) { return std::byte{byte}; });
  return bytes;
}

Announcement parse_announcement(const AnnouncementBytes& bytes) {
  const auto method = std::to_integer<std::uint8_t>(bytes.front());
  if (method < static_cast<std::uint8_t>(ProofMethod::job_secret) ||
      method > static_cast<std::uint8_t>(ProofMethod::none))
    refuse("reading how to prove who is who", fmt::format("there is no method {}", method));
  Announcement announcement{.method = static_cast<ProofMethod>(method)};
  std::transform(bytes.begin() + 1, bytes.end(), announcement.salt.begin(), std::to_integer<std::uint8_t>);
  return announcement;
}

Statement make_statement(HandshakeSide prover, const Greeting& connecting, const Greeting& accepting,
                         const Announcement& announcement) {
  const std::string_view name = prover == HandshakeSide::accepting ? "the accepting side"sv : "the connecting side"sv;
  std::vector<std::byte> text;
  const auto append = [&text](const auto& bytes) { text.insert(text.end(), bytes.begin(), bytes.end()); };
  append(encode(connecting));
  append(encode(accepting));
  append(encode(announcement));
  append(std::as_bytes(std::span{name}));
  Statement statement{};
  ::crypto_generichash(reinterpret_cast<unsigned char*>(statement.data()), statement.size(),
                       reinterpret_cast<const unsigned char*>(text.data()), text.size(), nullptr, 0);
  return statement;
}

Bytes with_length(std::span<const std::byte> proof) {
  Bytes bytes(2 + proof.size());
  bytes[0] = static_cast<std::byte>(proof.size() >> 8U & 0xFFU);
  bytes[1] = static_cast<std::byte>(proof.size() & 0xFFU);
  std::copy(proof.begin(), proof.end(), bytes.begin() + 2);
  return bytes;
}

std::size_t proof_length(std::span<const std::byte> received) {
  const std::size_t length =
      std::to_integer<std::size_t>(received[0]) << 8U | std::to_integer<std::size_t>(received[1]);
  if (length > kMaxProofBytes)
    refuse("reading a proof",
           fmt::format("its length is given as {} bytes; at most {} are allowed", length, kMaxProofBytes));
  return length;
}

}  // namespace ddp::launcher::control
