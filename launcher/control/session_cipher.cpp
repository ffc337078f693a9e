#include "control/session_cipher.hpp"

#include <sodium.h>

#include <string>

#include <ddp/error.hpp>

#include "control/protocol_error.hpp"

namespace ddp::launcher::control {
namespace {

static_assert(std::tuple_size_v<SessionCipher::Key> == crypto_kx_SESSIONKEYBYTES);
static_assert(std::tuple_size_v<SessionCipher::Key> == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
static_assert(SessionCipher::kOverheadBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);

using Nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

Nonce nonce_of(std::uint64_t number) {
  Nonce nonce{};
  for (std::size_t i = 0; i < sizeof number; ++i) nonce.at(i) = static_cast<unsigned char>(number >> (8 * i) & 0xFFU);
  return nonce;
}

const unsigned char* unsigned_of(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

}  // namespace

SessionCipher::~SessionCipher() {
  ::sodium_memzero(receiving_.data(), receiving_.size());
  ::sodium_memzero(sending_.data(), sending_.size());
}

Bytes SessionCipher::seal(std::span<const std::byte> plain) {
  Bytes sealed(plain.size() + kOverheadBytes);
  const Nonce nonce = nonce_of(sent_++);
  ::crypto_aead_chacha20poly1305_ietf_encrypt(reinterpret_cast<unsigned char*>(sealed.data()), nullptr,
                                              unsigned_of(plain.data()), plain.size(), nullptr, 0, nullptr,
                                              nonce.data(), sending_.data());
  return sealed;
}

Bytes SessionCipher::open(std::span<const std::byte> sealed) {
  if (sealed.size() < kOverheadBytes) refuse("decrypting a control message", "it is too short");
  Bytes plain(sealed.size() - kOverheadBytes);
  const Nonce nonce = nonce_of(received_);
  if (::crypto_aead_chacha20poly1305_ietf_decrypt(reinterpret_cast<unsigned char*>(plain.data()), nullptr, nullptr,
                                                  unsigned_of(sealed.data()), sealed.size(), nullptr, 0, nonce.data(),
                                                  receiving_.data()) != 0) {
    refuse("decrypting a control message", "it was changed on the way, or does not come from the other side");
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
    refuse("agreeing on keys for a control connection", "the other side's key is invalid");
  SessionCipher cipher{receiving, sending};
  ::sodium_memzero(receiving.data(), receiving.size());
  ::sodium_memzero(sending.data(), sending.size());
  return cipher;
}

}  // namespace ddp::launcher::control
