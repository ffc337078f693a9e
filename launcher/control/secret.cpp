// The job's secret: made, read and written, and wiped.
#include "control/secret.hpp"

#include <sodium.h>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::launcher::control {

static_assert(crypto_auth_KEYBYTES == 32);
static_assert(std::tuple_size_v<Salt> == crypto_pwhash_SALTBYTES);

void ensure_sodium() {
  if (::sodium_init() < 0) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "preparing the job's secret",
                 .cause = "libsodium cannot be initialised",
                 .native = "sodium_init -1",
                 .hint = "it needs random numbers from the kernel: getrandom(2) or /dev/urandom"}};
  }
}

Secret Secret::random() {
  ensure_sodium();
  Secret secret;
  ::randombytes_buf(secret.bytes_.data(), secret.bytes_.size());
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

}  // namespace ddp::launcher::control
