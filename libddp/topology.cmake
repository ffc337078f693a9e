# What there is on a machine, and where ranks go: the components of the topology, lowest first.
ddp_add_component(inventory
  SOURCES
    src/topology/inventory/cpu_set.cpp
    src/topology/inventory/devices.cpp
    src/topology/inventory/live_facts.cpp
    src/topology/inventory/gpu_facts.cpp
    src/topology/inventory/hwloc_reader.cpp
    src/topology/inventory/nccl_xml.cpp
    src/topology/inventory/network_facts.cpp
    src/topology/inventory/nic_inventory.cpp
    src/topology/inventory/nvml.cpp
    src/topology/inventory/sysfs.cpp
    src/topology/inventory/topology.cpp
    src/topology/inventory/topology_load.cpp
  NEEDS base
  LIBRARIES PkgConfig::HWLOC pugixml::static nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS})

ddp_add_component(network
  SOURCES
    src/topology/network/message_values.cpp
    src/topology/network/hostlist.cpp
    src/topology/network/user_interfaces.cpp
    src/topology/network/interface_agreement.cpp
    src/topology/network/interface_candidates.cpp
  NEEDS inventory base)

ddp_add_component(placement
  SOURCES
    src/topology/placement/core_pools.cpp
    src/topology/placement/balanced_assignment.cpp
    src/topology/placement/binding.cpp
    src/topology/placement/core_assignment.cpp
    src/topology/placement/gpu_assignment.cpp
    src/topology/placement/gpu_settings.cpp
    src/topology/placement/nic_assignment.cpp
    src/topology/placement/node_planner.cpp
    src/topology/placement/option_words.cpp
    src/topology/placement/placement.cpp
    src/topology/placement/rank_device.cpp
    src/topology/placement/rank_resources.cpp
    src/topology/placement/settings.cpp
    src/topology/placement/visible_devices.cpp
  NEEDS network inventory base)

# The whole of the topology.
add_library(ddp_topology INTERFACE)
target_link_libraries(ddp_topology INTERFACE ddp_placement ddp_network ddp_inventory)
