#include <ddp/sealed_store.hpp>

#include <sodium.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp {
namespace {

constexpr auto kAttempted = "sealing the values that ranks exchange";
constexpr std::size_t kNonceBytes = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
constexpr std::size_t kTagBytes = crypto_aead_xchacha20poly1305_ietf_ABYTES;

unsigned char* raw(Bytes& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }
const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
const unsigned char* raw(const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); }

class SealedStore final : public KeyValueStore {
 public:
  SealedStore(std::unique_ptr<KeyValueStore> store, std::span<const std::byte> secret, std::string purpose);
  SealedStore(const SealedStore&) = delete;
  SealedStore& operator=(const SealedStore&) = delete;
  ~SealedStore() override { ::sodium_memzero(key_.data(), key_.size()); }

  int rank() const override { return store_->rank(); }
  int world_size() const override { return store_->world_size(); }
  std::string_view transport() const override { return store_->transport(); }
  void put(std::string_view key, std::span<const std::byte> value) override { store_->put(key, sealed(key, value)); }
  void fence(Deadline deadline) override { store_->fence(deadline); }
  Bytes get(int rank, std::string_view key, Deadline deadline) override {
    return opened(rank, key, store_->get(rank, key, deadline));
  }
  std::vector<Bytes> get_all(std::string_view key, Deadline deadline) override {
    std::vector<Bytes> values = store_->get_all(key, deadline);
    for (int rank = 0; Bytes & value : values) value = opened(rank++, key, value);
    return values;
  }
  void put_on_node(std::string_view key, std::span<const std::byte> value) override {
    store_->put_on_node(key, sealed(key, value));
  }
  Bytes get_on_node(int rank, std::string_view key, Deadline deadline) override {
    return opened(rank, key, store_->get_on_node(rank, key, deadline));
  }
  void close() noexcept override { store_->close(); }

 private:
  Bytes sealed(std::string_view key, std::span<const std::byte> value) const;
  Bytes opened(int rank, std::string_view key, std::span<const std::byte> value) const;
  std::string place(int rank, std::string_view key) const;

  const std::unique_ptr<KeyValueStore> store_;
  const std::string purpose_;
  Bytes key_;
};

SealedStore::SealedStore(std::unique_ptr<KeyValueStore> store, std::span<const std::byte> secret, std::string purpose)
    : store_(std::move(store)), purpose_(std::move(purpose)), key_(crypto_aead_xchacha20poly1305_ietf_KEYBYTES) {
  if (secret.empty()) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = kAttempted,
                 .cause = "the secret is empty",
                 .hint = "job_secret() gives one, in a World of several ranks"}};
  }
  if (::sodium_init() < 0) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = kAttempted,
                 .cause = "libsodium cannot be initialised",
                 .native = "sodium_init -1"}};
  }
  // not the secret itself, which may have other uses
  const std::string use = "libddp sealed store";
  ::crypto_generichash_state hash;
  ::crypto_generichash_init(&hash, nullptr, 0, key_.size());
  ::crypto_generichash_update(&hash, raw(use), use.size());
  ::crypto_generichash_update(&hash, raw(secret), secret.size());
  ::crypto_generichash_final(&hash, raw(key_), key_.size());
}

std::string SealedStore::place(int rank, std::string_view key) const {
  return fmt::format("{}:{}/{}/{}", purpose_.size(), purpose_, rank, key);
}

Bytes SealedStore::sealed(std::string_view key, std::span<const std::byte> value) const {
  const std::string where = place(rank(), key);
  Bytes text(kNonceBytes + value.size() + kTagBytes);
  ::randombytes_buf(text.data(), kNonceBytes);
  ::crypto_aead_xchacha20poly1305_ietf_encrypt(raw(text) + kNonceBytes, nullptr, raw(value), value.size(), raw(where),
                                               where.size(), nullptr, raw(text), raw(key_));
  return text;
}

Bytes SealedStore::opened(int rank, std::string_view key, std::span<const std::byte> value) const {
  const std::string where = place(rank, key);
  Bytes text(value.size() - std::min(value.size(), kNonceBytes + kTagBytes));
  if (value.size() < kNonceBytes + kTagBytes ||
      ::crypto_aead_xchacha20poly1305_ietf_decrypt(raw(text), nullptr, nullptr, raw(value) + kNonceBytes,
                                                   value.size() - kNonceBytes, raw(where), where.size(), raw(value),
                                                   raw(key_)) != 0) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading '{}' of rank {} over the {}", key, rank, transport()),
                 .cause = "it is not sealed with this job's secret",
                 .ranks = {rank},
                 .hint = "another process has written it; or that rank has not called libddp.init() as this one has"}};
  }
  return text;
}

}  // namespace

std::unique_ptr<KeyValueStore> sealed_store(std::unique_ptr<KeyValueStore> store, std::span<const std::byte> secret,
                                            std::string purpose) {
  return std::make_unique<SealedStore>(std::move(store), secret, std::move(purpose));
}

}  // namespace ddp
