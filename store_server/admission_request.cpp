#include "store_server/admission_request.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <span>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "base/system_error.hpp"
#include "store_server/admission_message.hpp"
#include "store_server/peer_address.hpp"

namespace ddp::store_server {
namespace {

/// Empty when the server closes the connection without an answer.
std::string read_answer(int fd, Deadline deadline, const std::string& attempted) {
  while (base::wait_for(fd, POLLIN, deadline)) {
    char answer = 0;
    const ssize_t count = ::recv(fd, &answer, 1, 0);
    if (count >= 0) return std::string(static_cast<std::size_t>(count), answer);
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      throw base::system_error(attempted, errno, {}, ErrorCode::peer_lost);
    }
  }
  throw Error{{.code = ErrorCode::timeout,
               .attempted = attempted,
               .cause = "the server accepted the connection but did not answer before the deadline",
               .native = base::errno_name(ETIMEDOUT),
               .ranks = {},
               .hint = {}}};
}

}  // namespace

std::string make_admission_secret() {
  std::array<unsigned char, kAdmissionSecretBytes> bytes;
  ssize_t count = -1;
  do {
    count = ::getrandom(bytes.data(), bytes.size(), 0);  // never partial up to 256 bytes
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(bytes.size())) {
    throw base::system_error("making the secret of the TCPStore server", count < 0 ? errno : EIO);
  }
  std::string secret;
  for (const unsigned char byte : bytes) secret += fmt::format("{:02x}", byte);
  return secret;
}

void request_admission(const std::string& address, std::uint16_t port, const std::string& secret, Deadline deadline) {
  const bool v6 = address.find(':') != std::string::npos;
  const std::string attempted = fmt::format("asking the TCPStore server at {}{}{}:{} to admit this host", v6 ? "[" : "",
                                            address, v6 ? "]" : "", port);
  if (!PeerAddress::parse(address)) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = attempted,
                 .cause = fmt::format("'{}' is not a numeric IPv4 or IPv6 address", address),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  const AdmissionMessage message = admission_message(secret);
  const base::UniqueFd socket = base::connect_tcp(address, port, deadline);
  base::send_all(socket.get(), std::as_bytes(std::span{message}), deadline, attempted);
  const std::string answer = read_answer(socket.get(), deadline, attempted);
  if (answer.empty()) {
    throw Error{{.code = ErrorCode::conflict,
                 .attempted = attempted,
                 .cause = "the server closed the connection: it does not have this step's secret",
                 .native = {},
                 .ranks = {},
                 .hint = "the port may be another step's, or the server may be shutting down"}};
  }
  if (static_cast<std::uint8_t>(answer[0]) != kAdmissionGranted) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = attempted,
                 .cause = fmt::format("it answered with byte {}: it is not the store of a step",
                                      static_cast<std::uint8_t>(answer[0])),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
}

}  // namespace ddp::store_server
