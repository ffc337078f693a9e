// Environment variables of NCCL, UCX, PyTorch's gloo, OpenMP and the GPU runtimes that follow from a rank's placement.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ddp/topology.hpp>

#include "base/env_table.hpp"
#include "base/nccl_conf.hpp"
#include "topology/network/interface_candidates.hpp"
#include "topology/placement/option_words.hpp"

namespace ddp::topology {

struct SettingsOptions {
  GpuVisibility gpus = GpuVisibility::all;
  bool bound = true;          ///< the rank has a mask of its own, so OpenMP need not bind threads
  SocketInterface interface;  ///< without a name: none was chosen
  double processors = 0;      ///< processors' time that this rank may use (cgroups' quotas); 0: no limit
  std::vector<base::NcclConf> nccl_conf = {};  ///< that NCCL reads, the strongest first; the environment wins
};

/// One environment variable of one rank.
struct Setting {
  std::string name;
  std::string value;       ///< the user's where there is one, else the recommended one
  std::string reason{};    ///< one sentence
  bool by_user = false;    ///< the environment or a file of NCCL has it; it stays
  std::string conflict{};  ///< what is wrong with the user's value; empty: nothing
};

/// "NAME=value", and with a value that begins with '=', as NCCL's lists of exact names do, NAME="=eth0": not a typing
/// error, and a shell understands both.
std::string assignment(std::string_view name, std::string_view value);

/// Of @p files, the variables that derive_settings() would otherwise set.
std::vector<base::NcclConf> placement_conf(std::vector<base::NcclConf> files);

/// @param placements of all ranks of the node, as place() returned them.
/// @param environment what the user and the job scheduler gave. A variable that is set there, also to nothing, is kept;
/// so is one of NCCL's in SettingsOptions::nccl_conf.
/// Ordered by name.
std::vector<Setting> derive_settings(const Topology& topology, const std::vector<Placement>& placements, int local_rank,
                                     const SettingsOptions& options, const base::Environment& environment);

}  // namespace ddp::topology
