// Reads facts of a node and a process: /dev/shm, interfaces, limits, processors, cgroups, namespaces, services, names.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <future>
#include <map>
#include <string>
#include <string_view>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "../command/output.hpp"
#include "base/cgroup_limits.hpp"
#include "base/library_search.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "diagnostics/environment/redaction.hpp"
#include "doctor/facts.hpp"
#include "examination.hpp"
#include "topology/inventory/sysfs.hpp"
#include "topology/placement/visible_devices.hpp"

namespace ddp::tools::doctor {
namespace {

namespace fs = std::filesystem;

constexpr Version kDmaBufLinux{.major = 5, .minor = 12, .patch = 0};  // the first that registers dma-buf with RDMA

InterfaceFacts read_interface(const fs::path& root, const topology::RawInterface& raw,
                              const topology::InterfaceFact& fact) {
  const auto number = [](const fs::path& file) { return topology::read_number(file).value_or(0); };
  const fs::path folder = root / "sys/class/net" / raw.name;
  const fs::path conf = root / "proc/sys/net/ipv4/conf";
  return {.name = raw.name,
          .kind = fact.interface.kind,
          .running = fact.interface.up,
          .mtu = number(folder / "mtu"),
          .rate_mbps = static_cast<std::int64_t>(fact.interface.rate_gbps * 1000),
          .arp_ignore = std::max(number(conf / raw.name / "arp_ignore"), number(conf / "all/arp_ignore")),
          .arp_announce = std::max(number(conf / raw.name / "arp_announce"), number(conf / "all/arp_announce")),
          .addresses = raw.addresses};
}

}  // namespace

NodeFacts collect_node(const fs::path& root, const std::vector<topology::RawInterface>& raw) {
  NodeFacts node;
  const fs::path sys = root / "sys";
  const fs::path kernel = root / "proc/sys/kernel";
  node.boot_id = topology::read_attribute(kernel / "random/boot_id").value_or("");
  node.kernel = topology::read_attribute(kernel / "osrelease").value_or("");
  struct statvfs shm {};
  if (::statvfs((root / "dev/shm").c_str(), &shm) == 0) {
    node.shm_bytes = static_cast<std::int64_t>(shm.f_blocks * shm.f_frsize);
    node.shm_free_bytes = static_cast<std::int64_t>(shm.f_bavail * shm.f_frsize);
  }
  const auto facts = topology::read_interfaces(sys, raw);
  for (std::size_t i = 0; i < raw.size(); ++i) node.interfaces.push_back(read_interface(root, raw[i], facts[i]));
  collect_rdma(node, sys);
  const std::string ports =
      topology::read_attribute(root / "proc/sys/net/ipv4/ip_local_port_range").value_or("");  // "32768\t60999"
  if (const auto blank = ports.find_first_of(" \t"); blank != std::string::npos) {
    node.port_low = std::atoll(ports.c_str());
    node.port_high = std::atoll(ports.c_str() + blank);
  }
  collect_pci(node, sys);
  collect_fabric(node, root);
  collect_xids(node, root);
  for (const char* module : {"nvidia_peermem", "nv_peer_mem"}) {
    node.peer_memory = node.peer_memory || topology::has_entry(sys / "module" / module);
  }
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  ..."
  const std::string driver = topology::read_attribute(root / "proc/driver/nvidia/version").value_or("");
  node.dma_buf = driver.find("Open Kernel") != std::string::npos && Version::of(node.kernel) >= kDmaBufLinux;
  return node;
}

void collect_candidates(NodeFacts& node, const base::Environment& environment,
                        const std::vector<std::string>& peer_hosts, bool several_nodes) {
  try {
    const auto search = topology::find_candidates(
        environment, topology::read_usable_interfaces(), topology::read_rdma_devices("/sys"), peer_hosts,
        several_nodes ? topology::JobSpan::several_nodes : topology::JobSpan::one_node);
    for (const topology::InterfaceCandidate& candidate : search.candidates) {
      node.candidates.push_back(candidate.interface);
      node.candidate_facts.push_back(candidate.at);
    }
  } catch (const Error& error) {
    node.candidates_failure = error.cause();
  }
}

namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 25> kFamilies = {
    "NCCL_",      "TORCH_",       "PYTORCH_",        "GLOO_",         "UCX_",          "FI_",       "OFI_NCCL_",
    "OMP_",       "CUDA_",        "NVIDIA_",         "DDP_",          "TORCHELASTIC_", "MASTER_",   "SLURM_GPU",
    "SLURM_CPUS", "SLURM_JOB_ID", "SLURM_MPI_TYPE",  "SLURM_STEP_ID", "PMIX_MCA_",     "OMPI_MCA_", "ROCR_",
    "HIP_",       "GPU_DEVICE_",  "LD_LIBRARY_PATH", "LD_PRELOAD"};
// A longer variable is a list of files or processors, which no rule reads.
constexpr std::size_t kLongestValue = 1024;

// NVML has already been queried, so the driver is awake.
constexpr std::chrono::seconds kHealthTime{2};
// They affect programs that speak HTTP or gRPC between nodes.
constexpr std::array<std::string_view, 7> kProxies{"http_proxy",  "https_proxy", "grpc_proxy", "HTTP_PROXY",
                                                   "HTTPS_PROXY", "no_proxy",    "NO_PROXY"};

/// The soft limit in a line of /proc/PID/limits: "Max open files            1024                 524288     files".
std::int64_t soft_limit(const fs::path& limits, std::string_view name) {
  const std::string values = topology::read_field(limits, name, ' ').value_or("");
  std::int64_t soft = -1;  // "unlimited"
  std::from_chars(values.data(), values.data() + values.size(), soft);
  return soft;
}

/// Whether the process may lock unlimited memory: CAP_IPC_LOCK of the machine, which a user namespace cannot grant.
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

/// Empty if unknown.
CpuSet set_in(const fs::path& status, std::string_view name) {
  try {
    return CpuSet::parse(topology::read_field(status, name, ':').value_or(""));
  } catch (const Error&) {
    return {};
  }
}

/// Whether the process may open an IMEX channel, which processes of several nodes need to share GPU memory.
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
      chosen.emplace(name, diagnostics::shown_value(name, *value));  // it may contain a password
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
    if (!gpu.mig.empty()) name += " " + environment.raw("CUDA_VISIBLE_DEVICES").value_or("");  // each rank uses a part
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

namespace {

namespace fs = std::filesystem;

constexpr unsigned kFirstUser = 1000;  // SYS_UID_MAX of Debian, RHEL and SUSE is 999; logind spares system users
constexpr int kRasPort = 28028;        // NCCL's ras/ras_internal.h
constexpr std::string_view kListens = "0A";

/// logind.conf(5): the main file, then drop-ins by name; of equal names the first folder's counts.
std::vector<fs::path> logind_files(const fs::path& root) {
  std::map<std::string, fs::path> pieces;
  for (const char* folder : {"etc", "run", "usr/local/lib", "usr/lib"}) {
    const fs::path path = root / folder / "systemd/logind.conf.d";
    for (const std::string& name : topology::names_in(path)) {
      if (name.ends_with(".conf")) pieces.emplace(name, path / name);
    }
  }
  const fs::path own = root / "etc/systemd/logind.conf";
  std::vector<fs::path> files{topology::has_entry(own) ? own : root / "usr/lib/systemd/logind.conf"};
  for (const auto& [name, path] : pieces) files.push_back(path);
  return files;
}

bool removes_ipc(const fs::path& root, unsigned user) {
  // logind removes a user's files when the user's last session ends, those of running jobs as well.
  if (user < kFirstUser || !topology::has_entry(root / "run/systemd/users" / std::to_string(user))) return false;
  std::string value = "yes";  // its default
  for (const fs::path& file : logind_files(root)) {
    if (const auto set = topology::read_field(file, "RemoveIPC", '=')) value = *set;
  }
  return value != "no" && value != "false" && value != "0" && value != "off";
}

std::vector<std::string> words_in_line(const std::string& line) { return base::words_of(line, " \t"); }

/// The interfaces with a gateway in "Iface Destination Gateway Flags ...".
std::vector<std::string> find_gateways(const fs::path& route) {
  std::vector<std::string> found;
  std::ifstream file(route);
  for (std::string line; std::getline(file, line);) {
    const auto words = words_in_line(line);
    if (words.size() < 3 || words[0] == "Iface" || words[2] == "00000000") continue;
    if (std::find(found.begin(), found.end(), words[0]) == found.end()) found.push_back(words[0]);
  }
  return found;
}

int ras_port(const base::Environment& environment) {
  const std::string address = environment.raw("NCCL_RAS_ADDR").value_or("");
  const auto colon = address.rfind(':');
  int port = 0;
  if (colon != std::string::npos) std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  return port > 0 && port < 65536 ? port : kRasPort;
}

/// Whether a line of /proc/net/tcp is another user's socket listening at the port.
bool is_foreign(const std::vector<std::string>& words, int port, unsigned user) {
  constexpr std::size_t kLocal = 1;
  constexpr std::size_t kState = 3;
  constexpr std::size_t kUser = 7;
  if (words.size() <= kUser || words[kState] != kListens) return false;
  const std::string& local = words[kLocal];  // "0100007F:6D7C"
  int own = 0;
  std::from_chars(local.data() + local.find(':') + 1, local.data() + local.size(), own, 16);
  return own == port && words[kUser] != std::to_string(user);
}

}  // namespace

void collect_services(NodeFacts& node, const fs::path& root, const base::Environment& environment, unsigned user) {
  node.numa = topology::has_entry(root / "sys/devices/system/node/node0");
  node.removes_ipc = removes_ipc(root, user);
  node.gateways = find_gateways(root / "proc/net/route");
  const int port = ras_port(environment);
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream file(root / "proc/net" / table);
    for (std::string line; std::getline(file, line);) {
      if (is_foreign(words_in_line(line), port, user)) node.foreign_ras_port = port;
    }
  }
}

void collect_slurm(NodeFacts& node, const base::Environment& environment, Deadline deadline) {
  if (!environment.has("SLURM_JOB_ID")) return;
  const ProgramOutput said = run_program({.command = {"srun", "--version"}, .clean = false, .errors = false}, deadline);
  if (said.status != 0) return;
  const std::string line = said.text.substr(0, said.text.find('\n'));  // "slurm-wlm 22.05.8"
  const auto begin = line.find_last_of(' ');
  constexpr std::string_view kLetters = "0123456789.";
  if (begin == std::string::npos || begin + 1 == line.size()) return;
  const std::string_view version = std::string_view(line).substr(begin + 1);
  node.slurm_version = version.substr(0, version.find_first_not_of(kLetters));
}

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

/// Whether listening at the port fails because another program listens there.
bool is_taken(int port) {
  const base::UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int reuse = 1;  // as stores do: ended connections do not count
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

/// 0 if it is not a port: Kubernetes sets "tcp://10.0.0.5:29500" for a service named master.
int master_port(const base::Environment& environment) {
  const std::string text = environment.raw("MASTER_PORT").value_or("");
  int port = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), port);
  return status == std::errc{} && end == text.data() + text.size() && port < 65536 ? std::max(port, 0) : 0;
}

}  // namespace

void collect_names(NodeFacts& node, const std::string& host, const base::Environment& environment, Deadline deadline) {
  // In parallel: a resolver that is slow for one name must not use up the other's time.
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
