#include "stream/secret.hpp"

#include <sodium.h>

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::stream {
namespace {

static_assert(crypto_auth_KEYBYTES == 32);
static_assert(std::tuple_size_v<Salt> == crypto_pwhash_SALTBYTES);
static_assert(std::tuple_size_v<PublicKey> == crypto_kx_PUBLICKEYBYTES);
static_assert(std::tuple_size_v<SessionCipher::Key> == crypto_kx_SESSIONKEYBYTES);
static_assert(std::tuple_size_v<SessionCipher::Key> == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
static_assert(SessionCipher::kOverheadBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);

using Nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

Nonce nonce_of(std::uint64_t number) {
  Nonce nonce{};
  for (std::size_t i = 0; i < sizeof number; ++i) nonce.at(i) = static_cast<unsigned char>(number >> (8 * i) & 0xFFU);
  return nonce;
}

const unsigned char* raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

[[noreturn]] void refuse(std::string attempted, std::string cause) {
  throw Error{{.code = ErrorCode::protocol, .attempted = std::move(attempted), .cause = std::move(cause)}};
}

constexpr const char* kDecrypting = "decrypting a message";

}  // namespace

void ensure_sodium() {
  if (::sodium_init() >= 0) return;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "preparing the job's secret",
               .cause = "libsodium cannot be initialised",
               .native = "sodium_init -1",
               .hint = "it needs random numbers from the kernel: getrandom(2) or /dev/urandom"}};
}

PublicKey random_bytes() {
  ensure_sodium();
  PublicKey bytes{};
  ::randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

Secret Secret::random() { return of(random_bytes()); }

Secret Secret::of(std::span<const std::uint8_t, 32> bytes) {
  ensure_sodium();
  Secret secret;
  std::copy(bytes.begin(), bytes.end(), secret.bytes_.begin());
  return secret;
}

Secret Secret::from_phrase(const std::string& phrase, const Salt& salt) {
  ensure_sodium();
  Secret secret;
  if (::crypto_pwhash(secret.bytes_.data(), secret.bytes_.size(), phrase.data(), phrase.size(), salt.data(),
                      crypto_pwhash_OPSLIMIT_INTERACTIVE, crypto_pwhash_MEMLIMIT_INTERACTIVE,
                      crypto_pwhash_ALG_ARGON2ID13) != 0) {
    throw Error{{.code = ErrorCode::system,
                 .attempted = "stretching DDP_RDZV_SECRET",
                 .cause = fmt::format("there are no {} MiB of memory", crypto_pwhash_MEMLIMIT_INTERACTIVE >> 20U),
                 .native = "crypto_pwhash -1",
                 .hint = "raise the limit of memory (ulimit -v) or that of the cgroup"}};
  }
  return secret;
}

Secret Secret::from_hex(const std::string& hex) {
  ensure_sodium();
  Secret secret;
  const char* end = nullptr;
  std::size_t size = 0;
  // The text is not shown: it may be nearly the secret.
  if (hex.size() != 2 * secret.bytes_.size() ||
      ::sodium_hex2bin(secret.bytes_.data(), secret.bytes_.size(), hex.data(), hex.size(), nullptr, &size, &end) != 0 ||
      size != secret.bytes_.size() || end != hex.data() + hex.size()) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "reading the job's secret",
                 .cause = fmt::format("it is not {} hexadecimal digits (it has {} characters)",
                                      2 * secret.bytes_.size(), hex.size())}};
  }
  return secret;
}

std::string Secret::to_hex() const {
  std::string hex(2 * bytes_.size() + 1, '\0');
  ::sodium_bin2hex(hex.data(), hex.size(), bytes_.data(), bytes_.size());
  hex.pop_back();
  return hex;
}

Secret::~Secret() { ::sodium_memzero(bytes_.data(), bytes_.size()); }

SessionCipher::~SessionCipher() {
  ::sodium_memzero(receiving_.data(), receiving_.size());
  ::sodium_memzero(sending_.data(), sending_.size());
}

Bytes SessionCipher::seal(std::span<const std::byte> plain) {
  Bytes sealed(plain.size() + kOverheadBytes);
  const Nonce nonce = nonce_of(sent_++);
  ::crypto_aead_chacha20poly1305_ietf_encrypt(reinterpret_cast<unsigned char*>(sealed.data()), nullptr,
                                              raw(plain.data()), plain.size(), nullptr, 0, nullptr, nonce.data(),
                                              sending_.data());
  return sealed;
}

Bytes SessionCipher::open(std::span<const std::byte> sealed) {
  if (sealed.size() < kOverheadBytes) refuse(kDecrypting, "it is too short");
  Bytes plain(sealed.size() - kOverheadBytes);
  const Nonce nonce = nonce_of(received_);
  if (::crypto_aead_chacha20poly1305_ietf_decrypt(reinterpret_cast<unsigned char*>(plain.data()), nullptr, nullptr,
                                                  raw(sealed.data()), sealed.size(), nullptr, 0, nonce.data(),
                                                  receiving_.data()) != 0) {
    refuse(kDecrypting, "it was altered in transit, or another process sent it");
  }
  ++received_;
  return plain;
}

EphemeralKey::EphemeralKey() {
  ensure_sodium();
  ::crypto_kx_keypair(public_.data(), secret_.data());
}

EphemeralKey::~EphemeralKey() { ::sodium_memzero(secret_.data(), secret_.size()); }

SessionCipher EphemeralKey::agree(HandshakeSide own_side, const PublicKey& theirs) const {
  SessionCipher::Key receiving{};
  SessionCipher::Key sending{};
  const auto derive =
      own_side == HandshakeSide::connecting ? &::crypto_kx_client_session_keys : &::crypto_kx_server_session_keys;
  if (derive(receiving.data(), sending.data(), public_.data(), secret_.data(), theirs.data()) != 0)
    refuse("agreeing on a connection's keys", "the other side's key is invalid");
  SessionCipher cipher{receiving, sending};
  ::sodium_memzero(receiving.data(), receiving.size());
  ::sodium_memzero(sending.data(), sending.size());
  return cipher;
}

}  // namespace ddp::stream
