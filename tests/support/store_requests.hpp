// Requests of PyTorch's c10d TCPStore protocol as bytes, written apart from the server's own parser.
#pragma once

namespace ddp::test::store_request {

template <class Int>
std::string integer(Int value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
inline std::string text(std::string_view value) { return integer(std::uint64_t{value.size()}) + std::string{value}; }
inline std::string texts(const std::vector<std::string>& values) {
  std::string out;
  for (const std::string& value : values) out += text(value);
  return out;
}
/// Any operation: its code, then what is given.
inline std::string raw(int code, const std::string& rest = {}) {
  return std::string(1, static_cast<char>(code)) + rest;
}
inline std::string counted(int code, std::uint64_t count, const std::vector<std::string>& values) {
  return raw(code, integer(count) + texts(values));
}

/// The answer that ends a wait.
inline const std::string kStop("\0", 1);

inline std::string validate(std::uint32_t magic = 0x3C85F7CE) { return raw(0, integer(magic)); }
inline std::string set(std::string_view key, std::string_view value) { return raw(1, text(key) + text(value)); }
inline std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  return raw(2, text(key) + text(expected) + text(desired));
}
inline std::string get(std::string_view key) { return raw(3, text(key)); }
inline std::string add(std::string_view key, std::int64_t amount) { return raw(4, text(key) + integer(amount)); }
inline std::string check(const std::vector<std::string>& keys) { return counted(5, keys.size(), keys); }
inline std::string wait(const std::vector<std::string>& keys) { return counted(6, keys.size(), keys); }
inline std::string get_num_keys() { return raw(7); }
inline std::string delete_key(std::string_view key) { return raw(8, text(key)); }
inline std::string append(std::string_view key, std::string_view value) { return raw(9, text(key) + text(value)); }
inline std::string multi_get(const std::vector<std::string>& keys) { return counted(10, keys.size(), keys); }
/// Key, value, key, value, ...
inline std::string multi_set(const std::vector<std::string>& pairs) { return counted(11, pairs.size() / 2, pairs); }
inline std::string cancel_wait() { return raw(12); }
inline std::string ping(std::uint32_t nonce) { return raw(13, integer(nonce)); }
inline std::string queue_push(std::string_view key, std::string_view item) { return raw(14, text(key) + text(item)); }
inline std::string queue_pop(std::string_view key) { return raw(15, text(key)); }
inline std::string queue_len(std::string_view key) { return raw(16, text(key)); }
inline std::string list_keys() { return raw(17); }
inline std::string barrier(std::string_view key, std::int64_t world) { return raw(18, text(key) + integer(world)); }

}  // namespace ddp::test::store_request
