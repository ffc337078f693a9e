// How table and explanation name machines, devices and lists.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ddp/devices.hpp>
#include <ddp/placement.hpp>
#include <ddp/topology.hpp>

namespace ddp::tools {

/// "0-3,8" and, for four or more evenly spaced numbers, "0-24:8" (every eighth). Any order.
std::string number_list(std::vector<int> numbers);

/// "node[1-3,7],login": names that differ in one number are folded, in the order of first appearance.
std::string host_list(const std::vector<std::string>& hosts);

/// "1 GPU", "2 GPUs".
std::string counted(std::size_t count, std::string_view noun);

/// Without vendor and chip name: "H200" for "NVIDIA H200", "A100 SXM4 40GB" for "GA100 [A100 SXM4 40GB]".
std::string short_model(std::string_view model);

/// "400 Gbit/s", "0.1 Gbit/s"; "unknown rate" for 0.
std::string rate_text(double gbps);

/// "256 GiB".
std::string memory_text(unsigned long long bytes);

/// "GPU 3 (0000:5d:00.0)".
std::string gpu_name(const Gpu& gpu);

/// Equal things are counted: "8x NVIDIA H200"; empty for no device.
std::string gpu_summary(const Topology& topology);
std::string nic_summary(const Topology& topology);
/// "2 packages, 4 NUMA nodes, 64 cores, 128 PUs".
std::string machine_summary(const Topology& topology);

/// Operating-system numbers of NUMA nodes given by index: "0", "0-1"; "-" for none.
std::string numa_list(const Topology& topology, const std::vector<int>& numa_nodes);

/// From the rank's GPU to its first NIC; without a GPU, from its first NUMA node. "-" where there is nothing to
/// compare.
std::string path_word(const Topology& topology, const Placement& placement);

/// Everything but printable ASCII becomes '?': no name from a file or another host can control a terminal.
std::string plain_ascii(std::string_view text);

}  // namespace ddp::tools
