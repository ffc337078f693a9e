// The families of rules, one file each.
#pragma once

#include <span>

#include "doctor/rule.hpp"

namespace ddp::tools::doctor {

std::span<const Rule> environment_rules();  ///< environment variables
std::span<const Rule> nccl_rules();         ///< NCCL's version, log and timeouts
std::span<const Rule> host_rules();         ///< limits, /dev/shm, namespaces
std::span<const Rule> processor_rules();    ///< cores, binding, cgroups
std::span<const Rule> name_rules();         ///< host names, addresses of names, clocks
std::span<const Rule> interface_rules();    ///< which interfaces NCCL and libddp use
std::span<const Rule> network_rules();      ///< what lies between these interfaces
std::span<const Rule> rdma_rules();         ///< RDMA devices and their filter
std::span<const Rule> plugin_rules();       ///< NCCL's plugins, settings of networks that are not here
std::span<const Rule> gpu_adapter_rules();  ///< RDMA adapters that NCCL takes for each GPU
std::span<const Rule> gpu_fabric_rules();   ///< NVLink by NVSwitches: Fabric Manager, IMEX
std::span<const Rule> gpu_rules();          ///< GPUs, and PCIe above them
std::span<const Rule> gpu_health_rules();   ///< memory errors, slowdown
std::span<const Rule> version_rules();      ///< software that must agree

}  // namespace ddp::tools::doctor
