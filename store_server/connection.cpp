#include "store_server/connection.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace ddp::store_server {
namespace {

/// Capacity that an empty outbox keeps.
constexpr std::size_t kKeptOutboxBytes = std::size_t{64} * 1024;

Opening nothing_read(ssize_t count) {
  const bool later = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return later ? Opening::incomplete : Opening::gone;
}

}  // namespace

Opening Connection::read_opening(const AdmissionMessage& expected) noexcept {
  if (stage == Stage::accepted) {
    std::uint8_t first = 0;
    const ssize_t count = ::recv(fd.get(), &first, 1, MSG_PEEK);
    if (count <= 0) return nothing_read(count);
    if (first == static_cast<std::uint8_t>(Operation::validate)) return Opening::client;
    if (first != kAdmissionByte) return Opening::neither;
    stage = Stage::requesting_admission;
  }
  std::array<char, kAdmissionMessageBytes> bytes;
  const ssize_t count = ::recv(fd.get(), bytes.data(), request.missing_bytes(), 0);
  if (count <= 0) return nothing_read(count);
  switch (request.feed({bytes.data(), static_cast<std::size_t>(count)}, expected)) {
    case AdmissionReader::Verdict::valid: return Opening::valid_request;
    case AdmissionReader::Verdict::invalid: return Opening::invalid_request;
    case AdmissionReader::Verdict::incomplete: break;
  }
  return Opening::incomplete;
}

bool Connection::send_some() noexcept {
  while (unread() > 0) {
    const ssize_t count = ::send(fd.get(), outbox.data() + sent, unread(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  outbox.clear();
  sent = 0;
  // assigning an empty string would keep the memory
  if (outbox.capacity() > kKeptOutboxBytes) std::string{}.swap(outbox);
  return true;
}

}  // namespace ddp::store_server
