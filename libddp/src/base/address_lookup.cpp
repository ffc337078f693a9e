#include "base/address_lookup.hpp"

#include <sys/socket.h>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/abandonable_call.hpp"
#include "base/system_error.hpp"

namespace ddp::base {
namespace {

// A resolver with one dead server of two answers after 5 s (resolv.conf(5)).
constexpr std::chrono::seconds kPatience{30};

struct Found {
  int status;
  AddressList addresses;
};

Found look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  return {status, AddressList{status == 0 ? found : nullptr, &freeaddrinfo}};
}

}  // namespace

AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted) {
  return resolve(host, port, flags, attempted, Deadline::after(kPatience));
}

AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted,
                    Deadline deadline) {
  // numeric addresses need neither the resolver nor a thread
  Found found = look_up(host, port, (flags & ~AI_ADDRCONFIG) | AI_NUMERICHOST);
  const bool numeric = (flags & AI_NUMERICHOST) != 0;
  if (found.status != 0 && !numeric) {
    auto answer =
        abandonable_call([=] { return look_up(host, port, flags); }, earlier(deadline, Deadline::after(kPatience)));
    if (!answer) {
      throw Error{{.code = ErrorCode::timeout,
                   .attempted = attempted,
                   .cause = fmt::format("the resolver does not answer about the host name '{}'", host),
                   .native = errno_name(ETIMEDOUT),
                   .hint = "check the name servers (/etc/resolv.conf, /etc/nsswitch.conf), or give an IP address"}};
    }
    found = *std::move(answer);
  }
  if (found.status == 0) return std::move(found.addresses);
  const char* problem = gai_strerror(found.status);
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = attempted,
               .cause = numeric ? fmt::format("'{}' is not a numeric address: {}", host, problem)
                                : fmt::format("the host name '{}' cannot be resolved: {}", host, problem),
               .native = fmt::format("getaddrinfo {}", found.status),
               .hint = numeric ? "" : "check the name, or give an IP address"}};
}

}  // namespace ddp::base
