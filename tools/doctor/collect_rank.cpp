// What a process has: limits, processors, cgroups, namespaces, environment.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <fstream>
#include <string_view>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/cgroup_limits.hpp"
#include "diagnostics/environment/redaction.hpp"
#include "doctor/collect.hpp"
#include "topology/inventory/sysfs.hpp"
#include "topology/placement/visible_devices.hpp"

namespace ddp::tools::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 25> kFamilies = {
    "NCCL_",      "TORCH_",       "PYTORCH_",        "GLOO_",         "UCX_",          "FI_",       "OFI_NCCL_",
    "OMP_",       "CUDA_",        "NVIDIA_",         "DDP_",          "TORCHELASTIC_", "MASTER_",   "SLURM_GPU",
    "SLURM_CPUS", "SLURM_JOB_ID", "SLURM_MPI_TYPE",  "SLURM_STEP_ID", "PMIX_MCA_",     "OMPI_MCA_", "ROCR_",
    "HIP_",       "GPU_DEVICE_",  "LD_LIBRARY_PATH", "LD_PRELOAD"};
// A variable as long as this is a list of files or processors, which no rule looks at.
constexpr std::size_t kLongestValue = 1024;

// NVML has been asked before, so the driver is awake.
constexpr std::chrono::seconds kHealthTime{2};
// They matter to programs that speak HTTP or gRPC between nodes.
constexpr std::array<std::string_view, 7> kProxies{"http_proxy",  "https_proxy", "grpc_proxy", "HTTP_PROXY",
                                                   "HTTPS_PROXY", "no_proxy",    "NO_PROXY"};

/// The soft limit in a line of /proc/PID/limits: "Max open files            1024                 524288     files".
std::int64_t soft_limit(const fs::path& limits, std::string_view name) {
  const std::string values = topology::read_field(limits, name, ' ').value_or("");
  std::int64_t soft = -1;  // "unlimited"
  std::from_chars(values.data(), values.data() + values.size(), soft);
  return soft;
}

/// Whether the process may lock what it wants: CAP_IPC_LOCK of the machine, which a user namespace cannot give.
bool may_lock_all(const fs::path& self) {
  constexpr unsigned kIpcLock = 14;  // linux/capability.h
  const std::string text = topology::read_field(self / "status", "CapEff", ':').value_or("");
  std::uint64_t capabilities = 0;
  std::from_chars(text.data(), text.data() + text.size(), capabilities, 16);
  long long inside = -1;
  long long outside = -1;
  long long count = 0;  // "0 0 4294967295": not in a user namespace
  std::ifstream(self / "uid_map") >> inside >> outside >> count;
  constexpr long long kAllUsers = 4294967295;
  return ((capabilities >> kIpcLock) & 1U) != 0 && inside == 0 && outside == 0 && count == kAllUsers;
}

/// Empty: unknown.
CpuSet set_in(const fs::path& status, std::string_view name) {
  try {
    return CpuSet::parse(topology::read_field(status, name, ':').value_or(""));
  } catch (const Error&) {
    return {};
  }
}

/// Whether one of the devices by which processes of several nodes share GPUs' memory may be opened.
bool has_imex_channel(const fs::path& folder) {
  const auto names = topology::names_in(folder);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with("channel") && ::access((folder / name).c_str(), R_OK | W_OK) == 0;
  });
}

}  // namespace

Variables watched_variables(const base::Environment& environment) {
  Variables chosen;
  for (const auto& [name, value] : environment.variables()) {
    const std::string_view known = name;
    const auto begins = [known](std::string_view prefix) { return known.starts_with(prefix); };
    if (value.size() > kLongestValue || std::none_of(kFamilies.begin(), kFamilies.end(), begins)) continue;
    if (!diagnostics::is_secret(name)) chosen.emplace(name, value);
  }
  for (const std::string_view name : kProxies) {
    const auto value = environment.raw(name);
    if (value && !value->empty() && value->size() <= kLongestValue) {
      chosen.emplace(name, diagnostics::shown_value(name, *value));  // it may have a password
    }
  }
  return chosen;
}

RankFacts collect_rank(const fs::path& root, const base::Environment& environment,
                       const std::vector<base::NcclConf>& files) {
  RankFacts rank;
  rank.version = DDP_VERSION_STRING;
  rank.environment = watched_variables(environment);
  for (const base::NcclConf& file : files) {
    for (const auto& [name, value] : file.settings) {
      if (!diagnostics::is_secret(name)) rank.environment.emplace(name, value);  // the stronger ones come first
    }
  }
  rank.pmix_version = environment.raw("PMIX_VERSION").value_or("");
  const fs::path self = root / "proc/self";
  rank.memlock_bytes = may_lock_all(self) ? -1 : soft_limit(self / "limits", "Max locked memory");
  rank.stack_unlimited =
      topology::read_field(self / "limits", "Max stack size", ' ').value_or("").starts_with("unlimited");
  rank.open_files = soft_limit(self / "limits", "Max open files");
  rank.cpus = set_in(self / "status", "Cpus_allowed_list");
  rank.memory_nodes = set_in(self / "status", "Mems_allowed_list");
  const auto limits = base::CgroupLimits::read(root);
  rank.cpu_quota = limits.processors;
  rank.pids_limit = limits.processes;
  for (const char* kind : {"net", "ipc", "pid", "mnt", "uts"}) {
    if (std::string space = topology::link_name(self / "ns" / kind); !space.empty()) rank.namespaces[kind] = space;
  }
  rank.nvidia_caps = topology::has_entry(root / "dev/nvidia-caps");
  rank.imex_channel = has_imex_channel(root / "dev/nvidia-caps-imex-channels");
  struct stat shm {};
  if (::stat((root / "dev/shm").c_str(), &shm) == 0) rank.shm_device = shm.st_dev;
  return rank;
}

std::string name_of(const Gpu& gpu) { return gpu.uuid.empty() ? gpu.pci.to_string() : gpu.uuid; }

void collect_devices(RankFacts& rank, const Topology& topology, const base::Environment& environment) {
  rank.cores = std::count_if(topology.cores().begin(), topology.cores().end(),
                             [&](const Core& core) { return !(core.cpus & rank.cpus).empty(); });
  rank.gpus_of_node = static_cast<std::int64_t>(topology.gpus().size());
  rank.gpus_allowed =
      std::count_if(topology.gpus().begin(), topology.gpus().end(), [](const Gpu& gpu) { return gpu.visible; });
  if (!topology.gpus().empty()) rank.gpu_health = topology::ask_gpu_health(Deadline::after(kHealthTime));
  const auto named = topology::gpus_named_by(topology, environment);
  const auto add = [&](const Gpu& gpu) {
    std::string name = name_of(gpu);
    if (!gpu.mig.empty()) name += " " + environment.raw("CUDA_VISIBLE_DEVICES").value_or("");  // a part of it each
    rank.gpus.push_back(std::move(name));
    rank.gpu_models.push_back(gpu.model);
  };
  if (named) {
    for (const int index : *named) add(topology.gpus()[static_cast<std::size_t>(index)]);
  } else {
    for (const Gpu& gpu : topology.gpus()) {
      if (gpu.visible) add(gpu);
    }
  }
}

}  // namespace ddp::tools::doctor
