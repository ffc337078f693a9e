#include "topology/network/user_interfaces.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/host_name.hpp"
#include "base/slurm_step.hpp"

namespace ddp::topology {
namespace {

constexpr std::string_view kGlooVariable = "GLOO_SOCKET_IFNAME";
constexpr std::string_view kNcclVariable = "NCCL_SOCKET_IFNAME";

bool in_comma_list(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const auto comma = list.find(',');
    if (list.substr(0, comma) == name) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

/// Who named the interfaces: the user, or the launcher of this rank.
std::string reason_of(const base::Environment& environment, std::string_view variable, const std::string& list) {
  const std::string chosen = environment.raw(kInterfaceReasonVariable).value_or("");
  if (variable == kGlooVariable && chosen.starts_with(list + ": "))
    return fmt::format("ddprun chose it: {}", chosen.substr(list.size() + 2));
  const std::string step = environment.raw(base::kStepSettingsVariable).value_or("");
  if (const auto settings = base::parse_step_settings(step)) {
    for (const base::StepVariable& set : settings->variables) {
      if (set.name == variable && set.digest == base::value_digest(list))
        return fmt::format("srun --ddp chose it for the step, and set {}", variable);
    }
  }
  return fmt::format("{}={} names it", variable, list);
}

bool is_named(std::string_view variable, std::string_view list, const NetworkInterface& interface) {
  if (variable != kNcclVariable) return in_comma_list(list, interface.name);
  // NCCL skips loopback only by default; a list of what not to take would let it in (horovod#700).
  const bool exclusion = list.front() == '^';
  return names_interface(list, interface.name) && !(exclusion && interface.kind == InterfaceKind::loopback);
}

}  // namespace

std::optional<UserInterfaces> interfaces_named_by_user(const base::Environment& environment,
                                                       const std::vector<NetworkInterface>& interfaces) {
  for (const std::string_view variable : {std::string_view{"DDP_SOCKET_IFNAME"}, kGlooVariable, kNcclVariable}) {
    const auto list = environment.raw(variable);
    if (!list || list->empty()) continue;
    UserInterfaces named{.reason = reason_of(environment, variable, *list)};
    for (const NetworkInterface& interface : interfaces) {
      if (!interface.addresses.empty() && is_named(variable, *list, interface)) named.names.push_back(interface.name);
    }
    if (!named.names.empty()) return named;
    refuse_interfaces(ErrorCode::invalid_argument, interfaces,
                      fmt::format("{}={} names no interface of this host that has an address", variable, *list),
                      fmt::format("correct or unset {}; ", variable));
  }
  return std::nullopt;
}

std::string local_interface_warning(const base::Environment& environment,
                                    const std::vector<NetworkInterface>& interfaces, std::string_view chosen) {
  const auto local = [](const NetworkInterface& interface) {
    return interface.kind == InterfaceKind::loopback || interface.kind == InterfaceKind::host_only;
  };
  const auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                  [&](const NetworkInterface& each) { return each.name == chosen; });
  if (found == interfaces.end() || !local(*found)) return {};
  const auto named = interfaces_named_by_user(environment, interfaces);
  std::vector<std::string> others;
  for (const NetworkInterface& each : interfaces) {
    if (!local(each) && !each.addresses.empty()) others.push_back(describe(each));
  }
  return fmt::format(
      "the network interface {} reaches only host {}, but the job has others, too{}: connections between hosts will "
      "fail; others are: {}",
      chosen, base::host_name(), named ? fmt::format(" ({})", named->reason) : "",
      others.empty() ? "none" : fmt::format("{}", fmt::join(others, ", ")));
}

void refuse_interfaces(ErrorCode code, const std::vector<NetworkInterface>& interfaces, std::string cause,
                       const std::string& advice) {
  std::vector<std::string> names;
  for (const NetworkInterface& interface : interfaces) names.push_back(describe(interface));
  const std::string all = names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
  throw Error{{.code = code,
               .attempted = fmt::format("choosing the network interface on host {}", base::host_name()),
               .cause = std::move(cause),
               .hint = fmt::format("{}there are: {}", advice, all)}};
}

std::string describe(const NetworkInterface& interface) {
  std::vector<std::string> addresses;
  for (const InterfaceAddress& address : interface.addresses) addresses.push_back(address.address);
  const std::string all = addresses.empty() ? "no address" : fmt::format("{}", fmt::join(addresses, ", "));
  return fmt::format("{} ({})", interface.name, all);
}

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
