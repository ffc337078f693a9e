// How values of any bytes are cut into the short texts that PMI-1 and PMI-2 can carry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/bytes.hpp>

namespace ddp::kvs {

/// The longest that pmi_wire_key() makes; all servers allow 63.
inline constexpr std::size_t kPmiMostKeyBytes = 45;

/// What text @p number of a value is called. @p hash of the value's own key.
std::string pmi_wire_key(int rank, std::uint64_t hash, std::size_t number);

/// Cuts @p value into texts of at most @p most_bytes bytes, at least one. The first begins with
/// "1:<bytes>:<texts>:<key>:", the key making the text self-describing; the rest is unpadded base64url (RFC 4648).
std::vector<std::string> split_pmi_value(std::string_view key, std::span<const std::byte> value,
                                         std::size_t most_bytes);

/// Puts a value together again from its texts, in order.
class PmiValueAssembler {
 public:
  /// @param key the key that the value must be of. Throws Error(protocol), as add() does.
  PmiValueAssembler(std::string_view key, std::string_view first);
  void add(std::string_view text);

  std::size_t texts() const { return texts_; }  ///< how many texts the value has; the first is already taken
  Bytes finish() &&;                            ///< throws Error(protocol) unless all bytes have arrived

 private:
  std::string key_;
  std::size_t size_ = 0;
  std::size_t texts_ = 0;
  std::string encoded_;
};

}  // namespace ddp::kvs
