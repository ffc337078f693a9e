// Reading device attributes in /sys and /proc. What is missing or unreadable is nothing, never an error: attributes
// depend on kernel, driver and container.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/devices.hpp>

namespace ddp::topology {

/// First line of a file, without white space at its ends; nothing if it is empty.
std::optional<std::string> read_attribute(const std::filesystem::path& file);

/// The same as a whole number, decimal or "0x10de".
std::optional<long long> read_number(const std::filesystem::path& file);

/// What follows @p key and @p separator in the first line that begins with them ("DEVTYPE=vlan",
/// "Device Minor: \t 0"), without white space at its ends.
std::optional<std::string> read_field(const std::filesystem::path& file, std::string_view key, char separator);

/// Names of the entries of a folder, ascending.
std::vector<std::string> names_in(const std::filesystem::path& folder);

/// Whether a file, folder or link is there; a link also if it leads nowhere.
bool has_entry(const std::filesystem::path& path);

/// Last component of what a link says: "mlx5_core" for .../driver. Empty if it is no link.
std::string link_name(const std::filesystem::path& link);

/// The PCI function that a device of a class ("sys/class/net/eth0") belongs to: drivers such as virtio put devices of
/// their own between the two.
std::optional<PciAddress> pci_address_of(const std::filesystem::path& entry);

/// All PCI functions under sys/bus/pci/devices whose class is one of @p base_classes (the upper byte: 0x02 network,
/// 0x03 display), ascending.
std::vector<PciAddress> pci_functions(const std::filesystem::path& sys, const std::vector<unsigned>& base_classes);

/// sys/bus/pci/devices/ADDRESS.
std::filesystem::path pci_folder(const std::filesystem::path& sys, const PciAddress& address);

}  // namespace ddp::topology
