// Tells whether a file of a checkpoint is the one that was written: BLAKE2b, as fast as a disk for each rank. FNV-1a is
// no faster here (0.9 GB/s beside 0.7), and makes no promise for changes of several bytes.
#pragma once

#include <sodium/crypto_generichash.h>

#include <string>
#include <string_view>

namespace ddp::training {

class FileChecksum {
 public:
  static constexpr std::size_t kDigits = 64;

  /// Throws Error(unavailable) if libsodium cannot be used.
  FileChecksum();
  FileChecksum& add(std::string_view bytes);
  /// In lower-case hexadecimal. Ends it.
  std::string digits();

 private:
  crypto_generichash_state state_;
};

}  // namespace ddp::training
