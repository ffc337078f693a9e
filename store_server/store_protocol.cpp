#include "store_server/store_protocol.hpp"

#include <array>
#include <cstring>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::store_server {
namespace {

/// What follows the operation's byte: k a key, v a value, i a 64-bit integer, w a 32-bit one. Counted: a 64-bit number,
/// then that many times the fields.
struct Layout {
  std::string_view name;
  std::string_view fields;
  bool counted = false;
};

constexpr std::array<Layout, kOperations> kLayouts{{
    {"validate", "w"},   {"set", "kv"},        {"compare_set", "kvv"},   {"get", "k"},
    {"add", "ki"},       {"check", "k", true}, {"wait", "k", true},      {"get_num_keys", ""},
    {"delete_key", "k"}, {"append", "kv"},     {"multi_get", "k", true}, {"multi_set", "kv", true},
    {"cancel_wait", ""}, {"ping", "w"},        {"queue_push", "kv"},     {"queue_pop", "k"},
    {"queue_len", "k"},  {"list_keys", ""},    {"barrier", "ki"},
}};

constexpr const Layout& layout_of(Operation operation) { return kLayouts[static_cast<std::size_t>(operation)]; }

/// Buffers above this size are freed after their request.
constexpr std::size_t kKeptBytes = std::size_t{64} * 1024;

}  // namespace

std::string_view to_string(Operation operation) noexcept {
  const auto code = static_cast<std::size_t>(operation);
  return code < kOperations ? kLayouts[code].name : "unknown";
}

/// Continues with the current request, of which @p frame has all bytes from its beginning. True when it is complete.
bool RequestParser::scan(std::string_view frame) {
  if (at_ == 0) begin_request(static_cast<std::uint8_t>(frame[0]));
  const Layout& layout = layout_of(request_.operation);
  if (!counted_) {
    if (!scan_integer(groups_left_, frame)) return false;
    if (groups_left_ > kMostKeys) fail(fmt::format("has {} keys; the limit is {}", groups_left_, kMostKeys));
    counted_ = true;
  }
  for (; groups_left_ > 0; --groups_left_) {
    for (; field_ < layout.fields.size(); ++field_) {
      if (!scan_field(layout.fields[field_], frame)) return false;
    }
    field_ = 0;
  }
  if (request_.operation == Operation::validate) {
    if (request_.word != kMagic) fail(fmt::format("has the magic number {:#x}", request_.word));
    validated_ = true;
  }
  return true;
}

void RequestParser::begin_request(std::uint8_t code) {
  if (code >= kOperations || (static_cast<Operation>(code) == Operation::validate) == validated_) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading a TCPStore request",
                 .cause = fmt::format("byte {} cannot begin {} request", code, validated_ ? "a further" : "the first"),
                 .hint = "clients must be torch 2.2 or newer"}};
  }
  request_ = Request{.operation = static_cast<Operation>(code), .number = 0, .word = 0};
  at_ = 1;
  field_ = 0;
  fields_.clear();
  counted_ = !layout_of(request_.operation).counted;
  groups_left_ = 1;
}

bool RequestParser::scan_field(char kind, std::string_view frame) {
  switch (kind) {
    case 'k': return scan_text(kLargestKeyBytes, frame);
    case 'v': return scan_text(kLargestValueBytes, frame);
    case 'i': return scan_integer(request_.number, frame);
    default: return scan_integer(request_.word, frame);
  }
}

// Each attempt reads the length again, and refuses it at once if it is too large.
bool RequestParser::scan_text(std::uint64_t limit, std::string_view frame) {
  const std::size_t begin = at_;
  std::uint64_t size = 0;
  if (!scan_integer(size, frame)) return false;
  if (size > limit) fail(fmt::format("has a text of {} bytes; the limit is {}", size, limit));
  if (size > most_bytes_ || at_ > most_bytes_ - size) fail(fmt::format("has more than {} bytes in all", most_bytes_));
  if (frame.size() - at_ < size) {
    at_ = begin;
    return false;
  }
  fields_.push_back({.begin = at_, .size = static_cast<std::size_t>(size)});
  at_ += static_cast<std::size_t>(size);
  return true;
}

template <class Int>
bool RequestParser::scan_integer(Int& value, std::string_view frame) {
  if (frame.size() - at_ < sizeof value) return false;
  std::memcpy(&value, frame.data() + at_, sizeof value);
  at_ += sizeof value;
  return true;
}

/// The request that scan() found complete; the next scan() begins another.
const Request& RequestParser::take(std::string_view frame) {
  texts_.clear();
  for (const Field& field : fields_) texts_.push_back(frame.substr(field.begin, field.size));
  request_.texts = texts_;
  at_ = 0;
  return request_;
}

void RequestParser::keep(std::string_view bytes, std::size_t begin, bool continued) {
  if (continued) {
    pending_.erase(0, begin);
  } else if (begin < bytes.size()) {
    pending_.assign(bytes.substr(begin));
  }
  // assigning an empty string would keep the memory
  if (pending_.empty() && pending_.capacity() > kKeptBytes) std::string{}.swap(pending_);
  if (at_ == 0 && fields_.capacity() * sizeof(Field) > kKeptBytes) {
    std::vector<Field>{}.swap(fields_);
    std::vector<std::string_view>{}.swap(texts_);
  }
}

void RequestParser::fail(std::string cause) const {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = fmt::format("reading a TCPStore request ({})", to_string(request_.operation)),
               .cause = "it " + std::move(cause)}};
}

}  // namespace ddp::store_server
