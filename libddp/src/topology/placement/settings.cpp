#include "topology/placement/settings.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "topology/network/user_interfaces.hpp"
#include "topology/placement/gpu_settings.hpp"
#include "topology/placement/nic_assignment.hpp"

namespace ddp::topology {
namespace {

constexpr std::size_t kMostRdmaPorts = 32;  // NCCL's limit (MAX_IB_DEVS, net_ib)

/// Ports that NCCL and UCX can use: with a link layer of InfiniBand or Ethernet (EFA has another), and active if states
/// are known.
std::vector<NicPort> usable_ports(const Nic& nic) {
  const bool states =
      std::any_of(nic.ports.begin(), nic.ports.end(), [](const auto& port) { return !port.state.empty(); });
  std::vector<NicPort> ports;
  for (const NicPort& port : nic.ports) {
    if (states && port.state != "ACTIVE") continue;
    if (!port.link_layer.empty() && port.link_layer != "InfiniBand" && port.link_layer != "Ethernet") continue;
    ports.push_back(port);
  }
  return ports;
}

/// "mlx5_0:1" for each usable port; only the device if its ports are unknown.
std::vector<std::string> port_names(const Nic& nic) {
  if (nic.rdma_device.empty()) return {};
  if (nic.ports.empty()) return {nic.rdma_device};
  std::vector<std::string> names;
  for (const NicPort& port : usable_ports(nic)) names.push_back(fmt::format("{}:{}", nic.rdma_device, port.number));
  return names;
}

std::string link_layer(const Nic& nic) {
  const auto ports = usable_ports(nic);
  return ports.empty() ? std::string() : ports[0].link_layer;
}

class Deriver {
 public:
  Deriver(const Topology& topology, const std::vector<Placement>& placements, const Placement& own,
          const SettingsOptions& options, const base::Environment& environment)
      : topology_(topology), placements_(placements), own_(own), options_(options), environment_(environment) {}

  std::vector<Setting> derive() {
    sockets();
    rdma_devices();
    ucx_devices();
    openmp();
    for (Setting& setting : gpu_settings(topology_, placements_, own_, options_.gpus, environment_)) {
      settings_.push_back(std::move(setting));
    }
    std::sort(settings_.begin(), settings_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return std::move(settings_);
  }

 private:
  void set(std::string name, std::string value, std::string reason) {
    settings_.push_back({std::move(name), std::move(value), std::move(reason), false, {}});
  }
  void keep(std::string name, std::string value, std::string conflict) {
    settings_.push_back({std::move(name), std::move(value), "the environment has it", true, std::move(conflict)});
  }
  /// NCCL reads a site's file only for variables that the environment does not set: a variable set here would override
  /// it.
  bool keep_from_file(const char* name, std::string (Deriver::*conflict_of)(const std::string&) const) {
    const auto [file, value] = base::value_in(options_.nccl_conf, name);
    if (value == nullptr) return false;
    std::string conflict = (this->*conflict_of)(*value);
    if (!conflict.empty()) conflict += fmt::format(" ({} has it)", file->path);
    settings_.push_back({name, *value, fmt::format("{} has it", file->path), true, std::move(conflict)});
    return true;
  }

  void sockets() {
    const std::string& chosen = options_.interface.name;
    const std::string reason = options_.interface.reason.empty()
                                   ? fmt::format("{} is the interface over which ranks are reached", chosen)
                                   : fmt::format("{}: {}", chosen, options_.interface.reason);
    if (const auto value = environment_.raw("NCCL_SOCKET_IFNAME")) {
      std::string conflict = conflict_of_nccl_list(*value);
      if (conflict.empty() && !chosen.empty() && !names_interface(*value, chosen))
        conflict = fmt::format("NCCL will not use {}, over which ranks are reached", chosen);
      keep("NCCL_SOCKET_IFNAME", *value, std::move(conflict));
    } else if (!keep_from_file("NCCL_SOCKET_IFNAME", &Deriver::conflict_of_nccl_list) && !chosen.empty()) {
      set("NCCL_SOCKET_IFNAME", "=" + chosen, reason + "; the = asks NCCL for exactly this name");
    }
    if (const auto value = environment_.raw("GLOO_SOCKET_IFNAME")) {
      keep("GLOO_SOCKET_IFNAME", *value,
           chosen.empty() || value->empty() || *value == chosen
               ? ""
               : fmt::format("it is not {}, over which ranks are reached", chosen));
    } else if (!chosen.empty()) {
      set("GLOO_SOCKET_IFNAME", chosen, reason);
    }
    // torch's RPC would look up the host name, which is a loopback address on Debian
    if (const auto value = environment_.raw("TP_SOCKET_IFNAME")) {
      keep("TP_SOCKET_IFNAME", *value, "");
    } else if (!chosen.empty()) {
      set("TP_SOCKET_IFNAME", chosen, reason);
    }
  }

  std::string conflict_of_nccl_list(const std::string& list) const {
    const auto& interfaces = topology_.interfaces();
    const bool any = std::any_of(interfaces.begin(), interfaces.end(),
                                 [&](const auto& interface) { return names_interface(list, interface.name); });
    if (!interfaces.empty() && !any) {
      std::vector<std::string> names;
      for (const NetworkInterface& interface : interfaces) names.push_back(interface.name);
      return fmt::format("it leaves none of this machine's interfaces ({}), and NCCL will fail",
                         fmt::join(names, ", "));
    }
    return {};
  }

  // NCCL_IB_HCA is the same for all ranks of the node, and exact even if it names every device. NCCL itself takes the
  // nearest device for each GPU, and the others for GPUs that it reaches over NVLink (PXN). A device or interface that
  // appears later, or a prefix (mlx5_1 also means mlx5_10), must not change the choice.
  void rdma_devices() {
    if (const auto value = environment_.raw("NCCL_IB_HCA")) {
      keep("NCCL_IB_HCA", *value, conflict_of_hca_list(*value));
      return;
    }
    if (keep_from_file("NCCL_IB_HCA", &Deriver::conflict_of_hca_list)) return;
    std::set<int> own;  // the ranks' own
    std::set<std::string> layers;
    for (const Placement& placement : placements_) {
      if (placement.nics.empty() || port_names(nic(placement.nics[0])).empty()) continue;
      own.insert(placement.nics[0]);
      if (std::string layer = link_layer(nic(placement.nics[0])); !layer.empty()) layers.insert(std::move(layer));
    }
    std::vector<std::string> left_out;
    std::vector<int> chosen(own.begin(), own.end());  // first, since the limit cuts off the others
    for (const int index : training_nics(topology_).nics) {
      const std::string layer = link_layer(nic(index));
      if (own.count(index) > 0) continue;
      if (!layers.empty() && !layer.empty() && layers.count(layer) == 0) {
        left_out.push_back(fmt::format("{} is {}, and NCCL cannot mix", nic(index).rdma_device, layer));
      } else {
        chosen.push_back(index);
      }
    }
    std::vector<std::pair<int, std::string>> ports;
    for (const int index : chosen) {
      for (std::string& port : port_names(nic(index))) ports.emplace_back(index, std::move(port));
    }
    if (ports.size() > kMostRdmaPorts) {
      left_out.push_back(fmt::format("{} ports are too many for NCCL, which reads {}", ports.size(), kMostRdmaPorts));
      ports.resize(kMostRdmaPorts);
    }
    if (ports.empty()) return;
    std::sort(ports.begin(), ports.end());
    std::vector<std::string> names;
    for (auto& [index, port] : ports) names.push_back(std::move(port));
    std::string reason =
        "these are the RDMA ports that are fit for training (the = asks NCCL for exactly them), of which it takes the "
        "nearest "
        "for each GPU";
    if (!left_out.empty()) reason += fmt::format(" ({})", fmt::join(left_out, "; "));
    set("NCCL_IB_HCA", fmt::format("={}", fmt::join(names, ",")), std::move(reason));
  }

  const Nic& nic(int index) const { return topology_.nics().at(static_cast<std::size_t>(index)); }

  std::string conflict_of_hca_list(const std::string& list) const {
    std::vector<std::string> names;
    for (const Nic& nic : topology_.nics()) {
      if (nic.rdma_device.empty()) continue;
      names.push_back(nic.rdma_device);
      if (nic.ports.empty() && names_rdma_port(list, nic.rdma_device, -1)) return {};
      for (const NicPort& port : nic.ports) {
        if (names_rdma_port(list, nic.rdma_device, port.number)) return {};
      }
    }
    if (!names.empty()) {
      return fmt::format("it leaves none of this machine's RDMA devices ({}), so NCCL will use sockets",
                         fmt::join(names, ", "));
    }
    return list.empty() || list.starts_with('^') ? "" : "this machine has no RDMA device";
  }

  void ucx_devices() {
    constexpr const char* kName = "UCX_NET_DEVICES";
    if (const auto value = environment_.raw(kName)) {
      keep(kName, *value, conflict_of_ucx_list(*value));
      return;
    }
    if (own_.nics.empty()) return;
    std::vector<std::string> devices;
    std::vector<std::string> words;
    for (const int index : own_.nics) {
      const Nic& own = nic(index);
      std::vector<std::string> names = port_names(own);
      if (names.empty()) {
        if (!is_interface(own.interface)) continue;
        names.push_back(own.interface);
      } else if (own.ports.empty()) {
        names[0] += ":1";  // UCX takes no RDMA device without a port, and nearly all have one
      }
      devices.insert(devices.end(), names.begin(), names.end());
      words.push_back(own.name());
    }
    if (devices.empty()) return;
    set(kName, fmt::to_string(fmt::join(devices, ",")),
        fmt::format("{} {} this rank's own", fmt::join(words, ", "), words.size() == 1 ? "is" : "are"));
  }

  bool is_interface(std::string_view name) const {
    const auto& interfaces = topology_.interfaces();
    return std::any_of(interfaces.begin(), interfaces.end(), [&](const auto& known) { return known.name == name; });
  }

  std::string conflict_of_ucx_list(std::string_view list) const {
    // "all", exclusions and patterns always leave something.
    if (list.empty() || list == "all" || list.find_first_of("^*?[") != list.npos) return {};
    std::vector<std::string> known;
    for (const NetworkInterface& interface : topology_.interfaces()) known.push_back(interface.name);
    for (const Nic& nic : topology_.nics()) {
      if (!nic.rdma_device.empty()) known.push_back(nic.rdma_device);
    }
    if (known.empty()) return {};
    for (std::string_view rest = list; !rest.empty();) {
      const std::string_view entry = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
      if (std::find(known.begin(), known.end(), entry.substr(0, entry.find(':'))) != known.end()) return {};
    }
    return fmt::format("none of its devices is on this machine, which has {}", fmt::join(known, ", "));
  }

  /// The number of ranks, including this one, that may run on some of the same cores.
  int ranks_on_own_cores() const {
    const auto count = std::count_if(placements_.begin(), placements_.end(),
                                     [&](const Placement& other) { return other.cpus.intersects(own_.cpus); });
    return std::max(1, static_cast<int>(count));
  }

  void openmp() {
    const int sharing = ranks_on_own_cores();
    if (const auto value = environment_.raw("OMP_NUM_THREADS")) {
      keep("OMP_NUM_THREADS", *value, conflict_of_threads(*value));
    } else {
      const int cores = std::max(1, own_.num_cores / sharing);
      const bool throttled = options_.processors > 0 && options_.processors < cores;
      set("OMP_NUM_THREADS", fmt::to_string(throttled ? std::max(1, static_cast<int>(options_.processors)) : cores),
          throttled      ? fmt::format("a cgroup allows this rank the time of {:.3g} processors", options_.processors)
          : sharing == 1 ? fmt::format("this rank has {} {}", own_.num_cores, own_.num_cores == 1 ? "core" : "cores")
                         : fmt::format("{} ranks share {} cores", sharing, own_.num_cores));
    }
    // With any value but false, the initial thread is bound to the first place (OpenMP 5.0, 6.4; GCC's libgomp does it
    // when it is loaded), and the threads and processes that it starts, for data loading and communication, inherit the
    // mask of that one core. The rank's own mask already keeps its threads near its GPU. Some runtimes bind by default,
    // and most do if OMP_PLACES is set without this.
    const bool share = sharing > 1;
    for (const char* name : {"OMP_PLACES", "OMP_PROC_BIND"}) {
      if (const auto value = environment_.raw(name)) keep(name, *value, conflict_of_binding(*value, share));
    }
    if (options_.bound && !environment_.has("OMP_PROC_BIND") && !environment_.has("OMP_PLACES")) {
      set("OMP_PROC_BIND", "false",
          "the rank's mask holds its threads already; OpenMP would bind data-loading processes to a single core");
    }
  }

  /// The value is a number, or a list with one for each level of nesting.
  std::string conflict_of_threads(const std::string& value) const {
    if (value.empty()) return {};
    const std::string first = value.substr(0, value.find(','));
    int threads = 0;
    const auto [end, status] = std::from_chars(first.data(), first.data() + first.size(), threads);
    if (status != std::errc{} || end != first.data() + first.size() || threads < 1) {
      return "it is not a number of threads, and OpenMP libraries ignore it";
    }
    if (options_.processors > 0 && threads > std::max(1.0, options_.processors)) {
      return fmt::format("a cgroup allows this rank the time of {:.3g} processors only", options_.processors);
    }
    if (threads <= own_.cpus.count()) return {};
    const int count = own_.cpus.count();
    return fmt::format("this rank has only {} hardware {}", count, count == 1 ? "thread" : "threads");
  }

  std::string conflict_of_binding(std::string value, bool share) const {
    std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
    if (!share || value == "false" || value.empty()) return {};
    const auto bind = environment_.raw("OMP_PROC_BIND");
    if (bind && (*bind == "false" || *bind == "FALSE")) return {};
    return "ranks share cores, and OpenMP binds the threads of all of them to the same ones";
  }

  const Topology& topology_;
  const std::vector<Placement>& placements_;
  const Placement& own_;
  const SettingsOptions& options_;
  const base::Environment& environment_;
  std::vector<Setting> settings_;
};

}  // namespace

std::string assignment(std::string_view name, std::string_view value) {
  return value.starts_with('=') ? fmt::format("{}=\"{}\"", name, value) : fmt::format("{}={}", name, value);
}

std::vector<base::NcclConf> placement_conf(std::vector<base::NcclConf> files) {
  for (base::NcclConf& file : files) {
    std::erase_if(file.settings, [](const auto& setting) {
      return setting.first != "NCCL_SOCKET_IFNAME" && setting.first != "NCCL_IB_HCA";
    });
  }
  std::erase_if(files, [](const base::NcclConf& file) { return file.settings.empty(); });
  return files;
}

std::vector<Setting> derive_settings(const Topology& topology, const std::vector<Placement>& placements, int local_rank,
                                     const SettingsOptions& options, const base::Environment& environment) {
  const auto own = std::find_if(placements.begin(), placements.end(),
                                [&](const Placement& placement) { return placement.local_rank == local_rank; });
  if (own == placements.end()) {
    throw Error{
        {.code = ErrorCode::invalid_argument,
         .attempted = "deriving the settings of a rank",
         .cause = fmt::format("local rank {} is none of the {} that were placed", local_rank, placements.size())}};
  }
  return Deriver{topology, placements, *own, options, environment}.derive();
}

}  // namespace ddp::topology
