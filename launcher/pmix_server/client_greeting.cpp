#include "pmix_server/client_greeting.hpp"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace ddp::launcher {

ClientGreeting look_at_greeting(int connection) noexcept {
  std::array<std::byte, kGreetingHeaderBytes> header{};
  const ssize_t got = ::recv(connection, header.data(), header.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? ClientGreeting::incomplete : ClientGreeting::none;
  if (got == 0) return ClientGreeting::none;
  if (static_cast<std::size_t>(got) < header.size()) return ClientGreeting::incomplete;
  std::uint32_t length = 0;
  std::memcpy(&length, header.data() + 2 * sizeof length, sizeof length);
  if (length > kLongestGreetingBytes) return ClientGreeting::none;
  int arrived = 0;
  if (::ioctl(connection, FIONREAD, &arrived) != 0) return ClientGreeting::none;
  return static_cast<std::size_t>(arrived) >= header.size() + length ? ClientGreeting::whole
                                                                     : ClientGreeting::incomplete;
}

}  // namespace ddp::launcher
