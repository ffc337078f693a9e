// The secret of a store and its witnesses, new for each store.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::store_server {

class StoreKey {
 public:
  static constexpr std::size_t kBytes = 32;
  using Bytes = std::array<std::uint8_t, kBytes>;

  /// From getrandom(2). Throws Error(system).
  static StoreKey make();
  /// 64 hexadecimal digits. Throws Error(invalid_argument), which does not show it, for anything else.
  static StoreKey parse(std::string_view text);

  std::string text() const;  ///< for parse()
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_{};
};

/// Random bytes that nobody else has got. Throws Error(system).
std::array<std::uint8_t, 32> random_bytes();

}  // namespace ddp::store_server
