#include "topology/placement/rank_device.hpp"

#include <algorithm>
#include <set>
#include <string>

#include <fmt/format.h>

#include "topology/placement/gpu_assignment.hpp"
#include "topology/placement/visible_devices.hpp"

namespace ddp::topology {
namespace {

/// A device as CUDA counts it in this process.
struct Seen {
  std::optional<int> gpu;  ///< index in Topology::gpus(), where that is known
  std::string uuid;
};

class SeenDevices {
 public:
  SeenDevices(const Topology& topology, const base::Environment& environment) : topology_(topology) {
    const std::vector<int> gpus = visible_gpus(topology, Vendor::nvidia);
    if (gpus.empty()) return;
    const auto variables = visible_variables(topology, Vendor::nvidia, environment);
    if (variables.empty()) {
      reason_ = fmt::format("{} visible GPUs", gpus.size());
      for (const int gpu : gpus) add(gpu, topology.gpus()[static_cast<std::size_t>(gpu)].uuid);
    } else {
      read(variables.back());
    }
    forget_places_unless_in_pci_order(gpus, environment);
  }

  const std::vector<Seen>& all() const { return seen_; }
  bool listed() const { return listed_; }  ///< by a variable
  const std::string& reason() const { return reason_; }

 private:
  void add(std::optional<int> gpu, std::string uuid) { seen_.push_back({gpu, std::move(uuid)}); }

  void read(const VisibleVariable& variable) {
    reason_ = fmt::format("{}={}", variable.name, variable.value);
    listed_ = true;
    by_number_ = false;
    for (const VisibleEntry& entry : variable.entries) {
      const bool part = entry.text.starts_with("MIG-");
      by_number_ = by_number_ || !(part || entry.text.starts_with("GPU-"));
      add(entry.gpu, part ? entry.text : topology_.gpus()[static_cast<std::size_t>(entry.gpu)].uuid);
    }
    if (!variable.undecidable) return;
    // UUIDs, and no driver that tells whose they are: CUDA will find them
    seen_.clear();
    for (std::size_t from = 0; from <= variable.value.size();) {
      const std::size_t comma = std::min(variable.value.find(',', from), variable.value.size());
      add(std::nullopt, variable.value.substr(from, comma - from));
      from = comma + 1;
    }
  }

  /// CUDA numbers the fastest GPU 0 unless told otherwise. Equal ones keep their order.
  void forget_places_unless_in_pci_order(const std::vector<int>& gpus, const base::Environment& environment) {
    if (!by_number_ || environment.raw("CUDA_DEVICE_ORDER").value_or("") == "PCI_BUS_ID") return;
    std::set<std::string> models;
    for (const int gpu : gpus) models.insert(topology_.gpus()[static_cast<std::size_t>(gpu)].model);
    if (models.size() < 2) return;
    for (Seen& each : seen_) each = {};
  }

  const Topology& topology_;
  std::vector<Seen> seen_;
  std::string reason_;
  bool listed_ = false;
  bool by_number_ = true;  ///< some of them, as opposed to UUIDs
};

}  // namespace

std::optional<RankDevice> rank_device(const Topology& topology, const RankFacts& rank,
                                      const base::Environment& environment) {
  const SeenDevices devices(topology, environment);
  const std::vector<Seen>& seen = devices.all();
  if (seen.empty()) return std::nullopt;
  const auto count = static_cast<int>(seen.size());
  RankDevice device;
  // as place() shares out too few GPUs: those of a list in turns, else neighbours have the same one
  if (rank.local_world_size <= count || devices.listed()) {
    device.index = rank.local_rank % count;
  } else {
    device.index = rank.local_rank * count / rank.local_world_size;
  }
  device.reason = fmt::format("local rank {} of {}, {}", rank.local_rank, rank.local_world_size, devices.reason());
  if (rank.placement != nullptr && rank.placement->gpu) {
    const auto placed =
        std::find_if(seen.begin(), seen.end(), [&](const Seen& each) { return each.gpu == rank.placement->gpu; });
    if (placed != seen.end()) {
      device.index = static_cast<int>(placed - seen.begin());
      device.reason = fmt::format("placed by DDP_BIND, {}", devices.reason());
    }
  }
  const Seen& chosen = seen[static_cast<std::size_t>(device.index)];
  device.uuid = chosen.uuid;
  if (chosen.gpu) device.pci_bus_id = topology.gpus()[static_cast<std::size_t>(*chosen.gpu)].pci.to_string();
  return device;
}

std::optional<std::vector<int>> gpus_of_ranks(const RankViews& views, const std::vector<RankResources>& ranks,
                                              GpuVisibility visibility) {
  std::vector<int> firsts;
  std::optional<std::vector<int>> common;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    auto named = gpus_named_by(views.of(rank), base::Environment{ranks[rank].devices});
    if (!named && views.differ()) named = usable_gpus(views.of(rank));
    if (!named) {
      if (visibility != GpuVisibility::none) return std::nullopt;
      std::vector<int> all = usable_gpus(views.all());
      return all.size() > ranks.size() ? std::optional{std::move(all)} : std::nullopt;
    }
    if (named->empty()) return named;
    firsts.push_back(named->front());
    common = std::move(named);
  }
  const bool same = !views.differ() && std::all_of(ranks.begin(), ranks.end(), [&](const RankResources& each) {
    return each.devices == ranks.front().devices;
  });
  return same ? common : firsts;
}

namespace {

Topology with_visible(const Topology& topology, const std::set<PciAddress>& visible) {
  return topology.with_visible_gpus([&](const Gpu& gpu) { return visible.contains(gpu.pci); },
                                    "the device cgroup of this rank hides it");
}

}  // namespace

RankViews::RankViews(const Topology& topology, const std::vector<RankResources>& ranks) : topology_(topology) {
  const bool same = std::all_of(ranks.begin(), ranks.end(),
                                [&](const RankResources& rank) { return rank.gpus == ranks.front().gpus; });
  if (same) return;
  std::set<PciAddress> any;
  for (const RankResources& rank : ranks) {
    own_.push_back(with_visible(topology, {rank.gpus.begin(), rank.gpus.end()}));
    any.insert(rank.gpus.begin(), rank.gpus.end());
  }
  all_ = with_visible(topology, any);
}

}  // namespace ddp::topology
