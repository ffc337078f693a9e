#include <ddp/devices.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>

#include <fmt/format.h>

namespace ddp {
namespace {

/// Reads hexadecimal digits up to @p separator (or the end for 0) and moves past it.
bool take_hex(std::string_view& text, char separator, std::size_t most_digits, std::uint32_t& value) {
  const auto end = separator == '\0' ? text.size() : text.find(separator);
  if (end == std::string_view::npos || end == 0 || end > most_digits) return false;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + end, value, 16);
  if (status != std::errc{} || stop != text.data() + end) return false;
  text.remove_prefix(separator == '\0' ? end : end + 1);
  return true;
}

}  // namespace

std::optional<PciAddress> PciAddress::parse(std::string_view text) {
  std::uint32_t domain = 0;
  std::uint32_t bus = 0;
  std::uint32_t device = 0;
  std::uint32_t function = 0;
  if (std::count(text.begin(), text.end(), ':') == 2 && !take_hex(text, ':', 8, domain)) return std::nullopt;
  if (!take_hex(text, ':', 2, bus) || !take_hex(text, '.', 2, device) || !take_hex(text, '\0', 1, function)) {
    return std::nullopt;
  }
  if (device > 31 || function > 7) return std::nullopt;
  return PciAddress{domain, static_cast<std::uint8_t>(bus), static_cast<std::uint8_t>(device),
                    static_cast<std::uint8_t>(function)};
}

std::string PciAddress::to_string() const {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

std::string_view to_string(Vendor vendor) noexcept {
  switch (vendor) {
    case Vendor::nvidia: return "NVIDIA";
    case Vendor::amd: return "AMD";
    case Vendor::intel: return "Intel";
    case Vendor::other: break;
  }
  return "other";
}

std::string_view to_string(InterfaceKind kind) noexcept {
  switch (kind) {
    case InterfaceKind::hardware: return "hardware";
    case InterfaceKind::loopback: return "loopback";
    case InterfaceKind::bond: return "bond";
    case InterfaceKind::bond_slave: return "bond_slave";
    case InterfaceKind::vlan: return "vlan";
    case InterfaceKind::bridge: return "bridge";
    case InterfaceKind::host_only: return "host_only";
    case InterfaceKind::tunnel: return "tunnel";
    case InterfaceKind::other: break;
  }
  return "other";
}

std::string Nic::name() const {
  if (interface.empty() && rdma_device.empty()) return pci ? pci->to_string() : fmt::format("NIC {}", index);
  if (interface.empty()) return rdma_device;
  return rdma_device.empty() ? interface : fmt::format("{} ({})", interface, rdma_device);
}

std::string_view to_string(Path path) noexcept {
  switch (path) {
    case Path::self: return "X";
    case Path::nvlink: return "NVL";
    case Path::pix: return "PIX";
    case Path::pxb: return "PXB";
    case Path::phb: return "PHB";
    case Path::node: return "NODE";
    case Path::sys: return "SYS";
    case Path::unknown: break;
  }
  return "?";
}

Distance distance(const Locality& a, const Locality& b) {
  const auto [end_a, end_b] = std::mismatch(a.bridges.begin(), a.bridges.end(), b.bridges.begin(), b.bridges.end());
  const auto common = end_a - a.bridges.begin();
  const auto below_a = static_cast<int>(a.bridges.end() - end_a);
  const auto below_b = static_cast<int>(b.bridges.end() - end_b);
  if (common > 0) {
    const int between = below_a + below_b;
    if (common == 1) return {Path::phb, false, between};  // bridges[0] is the host bridge
    // A switch is an upstream port with downstream ports below it: devices of one switch have at most one bridge
    // each below their common one.
    return {below_a <= 1 && below_b <= 1 ? Path::pix : Path::pxb, false, between};
  }
  if (a.numa_node >= 0 && b.numa_node >= 0) {
    if (a.numa_node == b.numa_node) return {Path::node, false, 0};
    return {Path::sys, a.package != b.package || a.package < 0, 0};
  }
  // One of them is near to a whole package or to the whole machine.
  if (a.package >= 0 && b.package >= 0) return {Path::sys, a.package != b.package, 0};
  return {Path::unknown, false, 0};
}

}  // namespace ddp
