#include "kvs/pmi_value.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "kvs/pmi_channel.hpp"

namespace ddp::kvs {
namespace {

constexpr std::size_t kMostHeaderBytes = 128;
constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

std::string base64url(std::span<const std::byte> data) {
  std::string text;
  text.reserve((data.size() * 4 + 2) / 3);
  for (std::size_t i = 0; i < data.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, data.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = (bits << 8) | (k < count ? std::to_integer<std::uint32_t>(data[i + k]) : 0);
    for (std::size_t k = 0; k <= count; ++k) text += kAlphabet[(bits >> (18 - 6 * k)) & 63U];
  }
  return text;
}

int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '-') return 62;
  if (c == '_') return 63;
  return -1;
}

// Appends the bytes that @p text encodes; false if it is not base64url.
bool append_base64url(std::string_view text, Bytes& out) {
  if (text.size() % 4 == 1) return false;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    const std::size_t count = std::min<std::size_t>(4, text.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const int digit = k < count ? digit_of(text[i + k]) : 0;
      if (digit < 0) return false;
      bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    }
    for (std::size_t k = 0; k + 1 < count; ++k) out.push_back(static_cast<std::byte>((bits >> (16 - 8 * k)) & 0xffU));
  }
  return true;
}

}  // namespace

std::string pmi_wire_key(int rank, std::uint64_t hash, std::size_t number) {
  return fmt::format("ddp{}-{:016x}-{}", rank, hash, number);
}

std::vector<std::string> split_pmi_value(std::string_view key, std::span<const std::byte> value,
                                         std::size_t most_bytes) {
  // The header's length depends on the count that it states; iterating settles at once.
  std::string header;
  std::string encoded = base64url(value);
  std::size_t texts = 1;
  for (;;) {
    header = fmt::format("1:{}:{}:{}:", value.size(), texts, key);
    const std::size_t needed = (header.size() + encoded.size() + most_bytes - 1) / most_bytes;
    if (needed <= texts) break;
    texts = needed;
  }
  encoded.insert(0, header);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < texts; ++i) {
    // No text may be empty: a server may treat an empty value as absent.
    const std::size_t begin = encoded.size() * i / texts;
    parts.push_back(encoded.substr(begin, encoded.size() * (i + 1) / texts - begin));
  }
  return parts;
}

PmiValueAssembler::PmiValueAssembler(std::string_view key, std::string_view first) : key_(key) {
  const auto version = take_until(first, ':', "the format of a value");
  const auto size = parse_number<std::size_t>(take_until(first, ':', "the size of a value"));
  const auto texts = parse_number<std::size_t>(take_until(first, ':', "the number of texts of a value"));
  const auto stored_key = take_until(first, ':', "the key of a value");
  if (version != "1") throw_pmi_protocol("a value has an unknown format: " + pmi_excerpt(version));
  if (!size || !texts || *texts == 0) throw_pmi_protocol("the header of a value has no sizes");
  // Each text has at least one character.
  if (*texts > 2 * *size + kMostHeaderBytes) throw_pmi_protocol("the header of a value has too many texts");
  if (stored_key != key)
    throw_pmi_protocol(fmt::format("the value of '{}' is one of {}", key, pmi_excerpt(stored_key)));
  size_ = *size;
  texts_ = *texts;
  encoded_ = first;
}

void PmiValueAssembler::add(std::string_view text) { encoded_ += text; }

Bytes PmiValueAssembler::finish() && {
  Bytes value;
  value.reserve(encoded_.size() / 4 * 3 + 3);
  if (!append_base64url(encoded_, value)) throw_pmi_protocol(fmt::format("the value of '{}' is not base64url", key_));
  if (value.size() != size_) {
    throw_pmi_protocol(fmt::format("the value of '{}' has {} bytes instead of {}", key_, value.size(), size_));
  }
  return value;
}

}  // namespace ddp::kvs
