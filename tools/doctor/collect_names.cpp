// What names resolve to on a node, and whether MASTER_PORT is free there.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <future>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "doctor/collect.hpp"

namespace ddp::tools::doctor {
namespace {

NameFacts look_up(const std::string& name, Deadline deadline) {
  NameFacts found;
  try {
    const auto list = base::resolve(name, 0, 0, "resolving " + name, deadline);
    for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
      std::array<char, NI_MAXHOST> text{};
      if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
        found.addresses.emplace_back(text.data());
      }
    }
  } catch (const Error& error) {
    found.unanswered = error.code() == ErrorCode::timeout;
  }
  return found;
}

/// Whether a program could not listen at the port because another one does.
bool is_taken(int port) {
  const base::UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int reuse = 1;  // as stores do: connections that have ended do not count
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<std::uint16_t>(port));
  return fd && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 && errno == EADDRINUSE;
}

bool has_address(const NodeFacts& node, const std::string& address) {
  return std::any_of(node.interfaces.begin(), node.interfaces.end(), [&](const InterfaceFacts& interface) {
    return std::any_of(interface.addresses.begin(), interface.addresses.end(),
                       [&](const InterfaceAddress& each) { return each.address == address; });
  });
}

/// 0 for what is no port: Kubernetes sets "tcp://10.0.0.5:29500" for a service of the name master.
int master_port(const base::Environment& environment) {
  const std::string text = environment.raw("MASTER_PORT").value_or("");
  int port = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), port);
  return status == std::errc{} && end == text.data() + text.size() && port < 65536 ? std::max(port, 0) : 0;
}

}  // namespace

void collect_names(NodeFacts& node, const std::string& host, const base::Environment& environment, Deadline deadline) {
  // At once: a resolver that is slow for one name must not take the other's time.
  auto own = std::async(std::launch::async, look_up, host, deadline);
  const std::string master = environment.raw("MASTER_ADDR").value_or("");
  if (!master.empty()) node.master = look_up(master, deadline);
  node.own_name = own.get();
  const int port = master_port(environment);
  const bool served = environment.raw("TORCHELASTIC_USE_AGENT_STORE") == "True";
  node.master_port_taken = !served && port > 0 && !node.master.addresses.empty() &&
                           has_address(node, node.master.addresses.front()) && is_taken(port);
}

}  // namespace ddp::tools::doctor
