#include "collectives/shm/endpoint_address.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::collectives::shm {
namespace {

constexpr std::uint32_t kAddressMagic = 0x31'6d'68'73;  // "shm1"
constexpr std::size_t kLongestRefusal = 200;

template <class T>
void append(Bytes& bytes, const T& value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);  // all ranks concerned run on one host
}

template <class T>
bool take(const std::byte*& from, const std::byte* end, T& value) {
  if (static_cast<std::size_t>(end - from) < sizeof value) return false;
  std::memcpy(&value, from, sizeof value);
  from += sizeof value;
  return true;
}

}  // namespace

Bytes EndpointAddress::pack() const {
  Bytes bytes;
  append(bytes, kAddressMagic);
  append(bytes, boot_id);
  append(bytes, network_namespace);
  append(bytes, user);
  append(bytes, name);
  append(bytes, token);
  append(bytes, proof);
  const auto* const text = reinterpret_cast<const std::byte*>(refusal.data());
  bytes.insert(bytes.end(), text, text + std::min(refusal.size(), kLongestRefusal));
  return bytes;
}

EndpointAddress EndpointAddress::parse(const Bytes& bytes) {
  EndpointAddress address;
  std::uint32_t magic = 0;
  const std::byte* from = bytes.data();
  const std::byte* const end = from + bytes.size();
  const bool whole = take(from, end, magic) && take(from, end, address.boot_id) &&
                     take(from, end, address.network_namespace) && take(from, end, address.user) &&
                     take(from, end, address.name) && take(from, end, address.token) && take(from, end, address.proof);
  if (!whole || magic != kAddressMagic || static_cast<std::size_t>(end - from) > kLongestRefusal) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading a rank's address for shared memory",
                 .cause = fmt::format("{} bytes that are no such address", bytes.size()),
                 .hint = "all ranks must use the same version of libddp"}};
  }
  address.refusal.assign(reinterpret_cast<const char*>(from), static_cast<std::size_t>(end - from));
  return address;
}

std::string why_not_shared(const EndpointAddress& a, const EndpointAddress& b) {
  if (!a.refusal.empty()) return a.refusal;
  if (!b.refusal.empty()) return b.refusal;
  if (a.boot_id != b.boot_id) return "they run on different hosts";
  if (a.network_namespace != b.network_namespace) return "they are in different network namespaces of one host";
  if (a.user != b.user) return fmt::format("they run as different users, {} and {}", a.user, b.user);
  return {};
}

}  // namespace ddp::collectives::shm
