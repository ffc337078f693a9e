// Proofs are libsodium's HMAC-SHA-512-256 with a key made of both ranks' secrets.
#include "collectives/tcp/handshake.hpp"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"

namespace ddp::collectives::tcp {
namespace {

using namespace std::string_view_literals;

static_assert(crypto_auth_BYTES == sizeof(Proof));
static_assert(crypto_auth_KEYBYTES == sizeof(Key));

constexpr auto kGreeting = "ddptcp\n\x01"sv;  // the last byte is the version
static_assert(kGreeting.size() == 8);
constexpr std::size_t kMostAddressBytes = 64;  // more than a numeric address has, with its scope

const unsigned char* raw(const void* bytes) { return static_cast<const unsigned char*>(bytes); }
unsigned char* raw(void* bytes) { return static_cast<unsigned char*>(bytes); }

Key digest(std::span<const std::byte> text) {
  Key key{};
  ::crypto_generichash(raw(key.data()), key.size(), raw(text.data()), text.size(), nullptr, 0);
  return key;
}

}  // namespace

void prepare_proofs() {
  if (::sodium_init() >= 0) return;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "preparing the secret of this rank's connections",
               .cause = "libsodium cannot be initialised",
               .native = "sodium_init -1",
               .hint = "it needs random numbers from the kernel: getrandom(2) or /dev/urandom"}};
}

Key random_key() {
  Key key{};
  ::randombytes_buf(key.data(), key.size());
  return key;
}

Bytes encode(const RankRecord& record) {
  return base::ByteWriter{}.text(record.address).integer(record.port).raw(record.secret).bytes();
}

RankRecord decode_rank_record(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "address of a rank");
  RankRecord record;
  record.address = reader.text();
  record.port = reader.integer<std::uint16_t>();
  const auto secret = reader.raw(record.secret.size());
  std::copy(secret.begin(), secret.end(), record.secret.begin());
  reader.expect_end();
  if (record.address.size() <= kMostAddressBytes && record.port != 0) return record;
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading the address of a rank",
               .cause = "it is too long, or has no port",
               .hint = "do all ranks run the same version of libddp?"}};
}

HelloBytes encode(const Hello& hello) noexcept {
  HelloBytes bytes{};
  std::memcpy(bytes.data(), kGreeting.data(), kGreeting.size());
  const auto put = [&bytes](std::size_t at, std::uint32_t value) {
    for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i) & 0xffU);
  };
  put(8, hello.from);
  put(12, hello.to);
  std::memcpy(bytes.data() + 16, hello.nonce.data(), hello.nonce.size());
  return bytes;
}

std::optional<Hello> parse_hello(std::span<const std::byte, kHelloBytes> bytes) noexcept {
  if (std::memcmp(bytes.data(), kGreeting.data(), kGreeting.size()) != 0) return std::nullopt;
  const auto get = [&bytes](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 4; i-- > 0;) value = value << 8U | std::to_integer<std::uint32_t>(bytes[at + i]);
    return value;
  };
  Hello hello{.from = get(8), .to = get(12)};
  std::memcpy(hello.nonce.data(), bytes.data() + 16, hello.nonce.size());
  return hello;
}

MeshIdentity::MeshIdentity(int rank, const std::vector<Bytes>& records) : rank_(rank) {
  base::ByteWriter all;
  for (std::size_t i = 0; i < records.size(); ++i) {
    try {
      records_.push_back(decode_rank_record(records[i]));
    } catch (const Error& error) {
      ErrorDetail detail = error.detail();
      detail.ranks = {static_cast<int>(i)};
      throw Error{std::move(detail)};
    }
    all.blob(records[i]);
  }
  mesh_ = digest(all.bytes());
}

Proof MeshIdentity::prove(Side side, const Hello& hello, const Nonce& accepting) const {
  const auto [lower, higher] = std::minmax(hello.from, hello.to);
  const Key key = digest(
      base::ByteWriter{}.text("libddp pair of ranks").raw(records_[lower].secret).raw(records_[higher].secret).bytes());
  const Bytes statement =
      base::ByteWriter{}.integer(static_cast<std::uint8_t>(side)).raw(encode(hello)).raw(accepting).raw(mesh_).bytes();
  Proof proof{};
  ::crypto_auth(raw(proof.data()), raw(statement.data()), statement.size(), raw(key.data()));
  return proof;
}

bool MeshIdentity::proves(std::span<const std::byte> proof, Side side, const Hello& hello,
                          const Nonce& accepting) const {
  const Proof expected = prove(side, hello, accepting);
  return proof.size() == expected.size() && ::sodium_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

}  // namespace ddp::collectives::tcp
