#include "kvs/store_contract.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::kvs {

void check_rank(int rank, int world_size) {
  if (rank >= 0 && rank < world_size) return;
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "reading a value from the key-value store",
               .cause = fmt::format("there is no rank {} in a world of {}", rank, world_size)}};
}

void check_usable(bool usable, const std::string& attempted) {
  if (usable) return;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = attempted,
               .cause = "the key-value store was left, or an earlier fence of it failed",
               .hint = "launchers cannot undo a failed fence; end the job and start it again"}};
}

Error key_not_found(const std::string& attempted, std::string native) {
  return Error{{.code = ErrorCode::not_found,
                .attempted = attempted,
                .cause = "the rank has put no such key before the last fence",
                .native = std::move(native)}};
}

Deadline before_reserve(Deadline deadline) {
  const auto reserve = std::min<std::chrono::milliseconds>(deadline.remaining() / 4, std::chrono::seconds(2));
  return Deadline{deadline.when() - reserve};
}

Error fence_timeout(const std::string& attempted, std::vector<int> absent, int world_size) {
  std::string cause = absent.empty()
                          ? std::string("all ranks arrived, but the launcher did not complete it in time")
                          : fmt::format("{} of {} ranks did not arrive before the deadline", absent.size(), world_size);
  return Error{{.code = ErrorCode::timeout,
                .attempted = attempted,
                .cause = std::move(cause),
                .ranks = std::move(absent),
                .hint = "see what these ranks print and where they are; DDP_INIT_TIMEOUT gives them more seconds"}};
}

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
