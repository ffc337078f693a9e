#include "topology/network/ifname_list.hpp"

#include <charconv>
#include <cstddef>
#include <optional>

namespace ddp::topology {
namespace {

constexpr std::size_t kMostInterfaces = 16;   // MAX_IFS, include/socket.h
constexpr std::size_t kMostRdmaDevices = 32;  // MAX_IB_DEVS, net_ib

/// What comes after the colon as atoi() reads it: digits, then anything; 0 where there are none.
int port_number(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

bool matches(std::string_view list, std::string_view name, std::optional<int> port, std::size_t most) {
  const bool excluded = list.starts_with('^');
  if (excluded) list.remove_prefix(1);
  const bool exact = list.starts_with('=');
  if (exact) list.remove_prefix(1);

  std::size_t names = 0;
  bool found = false;
  while (!list.empty() && names < most) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(entry.size() == list.size() ? entry.size() : entry.size() + 1);
    const auto colon = entry.find(':');
    const std::string_view wanted = entry.substr(0, colon);
    if (wanted.empty()) continue;
    ++names;
    if (exact ? name != wanted : !name.starts_with(wanted)) continue;
    if (!port || colon == std::string_view::npos) {
      found = true;
    } else {
      const int wanted_port = port_number(entry.substr(colon + 1));
      found = found || wanted_port == *port || wanted_port == -1 || *port == -1;
    }
  }
  if (names == 0) found = true;
  return found != excluded;
}

}  // namespace

bool names_interface(std::string_view list, std::string_view name) {
  return list.size() < 2 || matches(list, name, std::nullopt, kMostInterfaces);
}

bool names_rdma_port(std::string_view list, std::string_view device, int port) {
  return matches(list, device, port, kMostRdmaDevices);
}

}  // namespace ddp::topology
