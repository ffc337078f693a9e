#include "kvs/store_key.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::kvs {
namespace {

// Not isalnum: that one depends on the locale.
bool allowed(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

// A key as it can stand in a message: cut short, with everything unprintable as \xNN.
std::string printable(std::string_view key) {
  std::string text;
  for (const char c : key.substr(0, kMaxKeyBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += fmt::format("\\x{:02x}", byte);
    }
  }
  return key.size() > kMaxKeyBytes ? text + "..." : text;
}

}  // namespace

void check_key(std::string_view key) {
  std::string cause;
  if (key.empty()) {
    cause = "the key is empty";
  } else if (key.size() > kMaxKeyBytes) {
    cause = fmt::format("the key '{}' has {} bytes, {} are allowed", printable(key), key.size(), kMaxKeyBytes);
  } else if (const auto bad = std::find_if_not(key.begin(), key.end(), allowed); bad != key.end()) {
    cause =
        fmt::format("the key '{}' has a byte that is not allowed at position {}", printable(key), bad - key.begin());
  } else {
    return;
  }
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "checking a key of the key-value store",
               .cause = cause,
               .hint = "use 1 to 64 letters, digits, dots, underscores and hyphens"}};
}

}  // namespace ddp::kvs
