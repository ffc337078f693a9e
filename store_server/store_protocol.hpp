// Parses requests of PyTorch's c10d TCPStore protocol from a client's byte stream, which arrives in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store_server/store_key.hpp"

namespace ddp::store_server {

/// The first byte of a request (QueryType in torch/csrc/distributed/c10d/TCPStoreBackend.hpp).
enum class Operation : std::uint8_t {
  validate = 0,
  set = 1,
  compare_set = 2,
  get = 3,
  add = 4,
  check = 5,
  wait = 6,
  get_num_keys = 7,
  delete_key = 8,
  append = 9,
  multi_get = 10,
  multi_set = 11,
  cancel_wait = 12,
  ping = 13,
  queue_push = 14,
  queue_pop = 15,
  queue_len = 16,
  list_keys = 17,
  barrier = 18,
};
inline constexpr std::size_t kOperations = 19;

/// For example "compare_set".
std::string_view to_string(Operation operation) noexcept;

/// The content of VALIDATE, the first request of every connection.
inline constexpr std::uint32_t kMagic = 0x3C85F7CE;

// The limits of torch's libuv server (TCPStoreLibUvBackend.cpp).
inline constexpr std::uint64_t kLargestKeyBytes = 8 * 1024;
inline constexpr std::uint64_t kLargestValueBytes = 8 * 1024 * 1024;
inline constexpr std::uint64_t kMostKeys = 128 * 1024;

/// One request. Its views are valid during the handler's call.
struct Request {
  Operation operation = Operation::validate;
  /// Keys and values in the order sent. SET: key, value. COMPARE_SET: key, expected, desired. MULTI_SET: key, value,
  /// key, value, ... Others: their keys.
  std::span<const std::string_view> texts{};
  std::int64_t number = 0;  ///< ADD: the amount; BARRIER: the number of clients
  std::uint32_t word = 0;   ///< PING: to be sent back
};

/// The requests of one connection. Integers are in the host's byte order, as torch sends them.
class RequestParser {
 public:
  /// @param most_bytes of a request
  explicit RequestParser(std::size_t most_bytes = StoreLimits{}.request_bytes) : most_bytes_(most_bytes) {}

  /// Calls @p handle with each request that @p bytes complete, and keeps the rest. Throws Error(protocol) for bytes
  /// that no client may send, and lets exceptions of @p handle through. The parser is unusable after either.
  template <class Handler>
  void feed(std::string_view bytes, Handler&& handle) {
    const bool continued = !pending_.empty();
    if (continued) {
      pending_.append(bytes);
      bytes = pending_;
    }
    std::size_t begin = 0;
    while (begin < bytes.size()) {
      const std::string_view frame = bytes.substr(begin);
      if (!scan(frame)) break;
      const std::size_t size = at_;
      handle(take(frame));
      begin += size;
    }
    keep(bytes, begin, continued);
  }

  /// Whether the client has sent a valid VALIDATE.
  bool validated() const { return validated_; }

  /// What has come of the incomplete request.
  std::size_t begun_bytes() const { return pending_.size(); }
  /// Memory held for incomplete requests.
  std::size_t held_bytes() const {
    return pending_.capacity() + fields_.capacity() * sizeof(Field) + texts_.capacity() * sizeof(std::string_view);
  }

 private:
  struct Field {
    std::size_t begin;
    std::size_t size;
  };

  bool scan(std::string_view frame);
  void begin_request(std::uint8_t code);
  bool scan_field(char kind, std::string_view frame);
  bool scan_text(std::uint64_t limit, std::string_view frame);
  template <class Int>
  bool scan_integer(Int& value, std::string_view frame);
  const Request& take(std::string_view frame);
  void keep(std::string_view bytes, std::size_t begin, bool continued);
  [[noreturn]] void fail(std::string cause) const;

  std::size_t most_bytes_;
  std::string pending_;  ///< the incomplete request
  // Progress of scan() in the current request: one in many pieces is still read once.
  std::size_t at_ = 0;             ///< bytes read
  std::size_t field_ = 0;          ///< in the operation's layout
  std::uint64_t groups_left_ = 0;  ///< repetitions of the layout
  bool counted_ = false;           ///< groups_left_ has been read
  std::vector<Field> fields_;
  std::vector<std::string_view> texts_;
  Request request_;
  bool validated_ = false;
};

}  // namespace ddp::store_server
