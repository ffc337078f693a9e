#include "topology/placement/gpu_settings.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "topology/placement/visible_devices.hpp"

namespace ddp::topology {
namespace {

class GpuSettings {
 public:
  GpuSettings(const Topology& topology, const std::vector<Placement>& placements, const Placement& own,
              GpuVisibility visibility, const base::Environment& environment)
      : topology_(topology), placements_(placements), own_(own), visibility_(visibility), environment_(environment) {}

  std::vector<Setting> derive() {
    device_order();
    visible_devices(Vendor::nvidia, "CUDA_VISIBLE_DEVICES");
    visible_devices(Vendor::amd, "ROCR_VISIBLE_DEVICES");
    visible_devices(Vendor::intel, "ZE_AFFINITY_MASK");
    return std::move(settings_);
  }

 private:
  const Gpu& gpu(int index) const { return topology_.gpus().at(static_cast<std::size_t>(index)); }
  bool is_own_vendor(Vendor vendor) const { return own_.gpu && gpu(*own_.gpu).vendor == vendor; }

  void set(std::string name, std::string value, std::string reason) {
    put({std::move(name), std::move(value), std::move(reason), false, {}});
  }
  void keep(std::string name, std::string value, std::string conflict) {
    put({std::move(name), std::move(value), "the environment has it", true, std::move(conflict)});
  }
  /// HIP reads CUDA_VISIBLE_DEVICES, too: what is said of it last counts, unless this rank's GPU is NVIDIA's, or it
  /// would hide what was found wrong before.
  void put(Setting setting) {
    const auto known = std::find_if(settings_.begin(), settings_.end(),
                                    [&](const Setting& each) { return each.name == setting.name; });
    if (known == settings_.end()) {
      settings_.push_back(std::move(setting));
    } else if (!is_own_vendor(Vendor::nvidia) &&
               (known->conflict.empty() || !setting.conflict.empty() || !setting.by_user)) {
      *known = std::move(setting);
    }
  }

  /// Without it CUDA numbers the fastest GPU 0, and numbers mean other GPUs to it than to everybody else.
  void device_order() {
    constexpr const char* kName = "CUDA_DEVICE_ORDER";
    const std::vector<int> gpus = visible_gpus(topology_, Vendor::nvidia);
    if (const auto value = environment_.raw(kName)) {
      std::set<std::string> models;
      for (const int index : gpus) models.insert(gpu(index).model);
      keep(
          kName, *value,
          *value == "PCI_BUS_ID" || models.size() < 2
              ? ""
              : fmt::format("CUDA numbers GPUs of different models ({}) by speed then, not by PCI address as all other "
                            "tools do; set it to PCI_BUS_ID",
                            fmt::join(models, ", ")));
    } else if (!gpus.empty() && visibility_ != GpuVisibility::none) {
      set(kName, "PCI_BUS_ID", "numbers of GPUs then mean the same to CUDA and to other tools");
    }
  }

  void visible_devices(Vendor vendor, const char* name) {
    const std::vector<int> gpus = visible_gpus(topology_, vendor);
    const std::vector<VisibleVariable> given = visible_variables(topology_, vendor, environment_);
    if (!given.empty()) {
      if (has_device_ordinal(given)) return replace_device_ordinal(given, gpus);
      for (const VisibleVariable& variable : given) {
        // The last one to act chooses among what the others leave: it is the one to narrow.
        if (&variable == &given.back() && visibility_ == GpuVisibility::one && is_own_vendor(vendor)) {
          narrow(variable);
        } else {
          keep(variable.name, variable.value, conflict_of(variable, gpus, &variable == &given.back()));
        }
      }
      return;
    }
    if (visibility_ == GpuVisibility::one && is_own_vendor(vendor)) {
      if (vendor == Vendor::intel && !count_cards()) return;
      set(name, name_of_own(gpus), fmt::format("{} {} is this rank's own", to_string(vendor), address_of_own()));
    } else if (visibility_ == GpuVisibility::all && !gpus.empty()) {
      show_all(vendor, name, gpus);
    }
  }

  static bool has_device_ordinal(const std::vector<VisibleVariable>& given) {
    return std::any_of(given.begin(), given.end(), [](const auto& each) { return each.name == kDeviceOrdinal; });
  }

  /// With GPU_DEVICE_ORDINAL, the others' numbers mean other GPUs to HIP than AMD documents. ROCR_VISIBLE_DEVICES names
  /// what all of them leave, and the others all of that: so they mean the same, whoever reads which.
  void replace_device_ordinal(const std::vector<VisibleVariable>& given, const std::vector<int>& gpus) {
    std::vector<int> left;
    for (const VisibleEntry& entry : given.back().entries) {
      if (visibility_ != GpuVisibility::one || !is_own_vendor(Vendor::amd) || entry.gpu == *own_.gpu)
        left.push_back(entry.gpu);
    }
    const bool own_named = !is_own_vendor(Vendor::amd) || std::find(left.begin(), left.end(), *own_.gpu) != left.end();
    if (visibility_ == GpuVisibility::none || given.back().undecidable || left.empty() || !own_named) {
      for (const VisibleVariable& variable : given) {
        std::string conflict = conflict_of(variable, gpus, &variable == &given.back());
        if (conflict.empty() && variable.name == kDeviceOrdinal && !gpus.empty())
          conflict = "OpenCL obeys it and HIP does not; ROCR_VISIBLE_DEVICES is for both";
        keep(variable.name, variable.value, std::move(conflict));
      }
      return;
    }
    std::vector<std::string> names;
    std::vector<std::string> positions;
    for (const int index : left) {
      positions.push_back(fmt::to_string(names.size()));
      names.push_back(name_of(index, gpus));
    }
    set("ROCR_VISIBLE_DEVICES", fmt::to_string(fmt::join(names, ",")),
        fmt::format("{} leaves these, but HIP does not read it", kDeviceOrdinal));
    for (const VisibleVariable& variable : given) {
      if (variable.name == "ROCR_VISIBLE_DEVICES") continue;
      set(variable.name, fmt::to_string(fmt::join(positions, ",")),
          fmt::format("it counts what ROCR_VISIBLE_DEVICES leaves; it was '{}'", variable.value));
    }
  }

  std::string address_of_own() const { return fmt::format("GPU {}", gpu(*own_.gpu).pci.to_string()); }

  /// Level Zero's numbers are those of cards in PCI order only if it is told so: by default newer drivers number tiles,
  /// of which nothing is known here (Level Zero specification, "Environment Variables").
  bool count_cards() {
    constexpr const char* kHierarchy = "ZE_FLAT_DEVICE_HIERARCHY";
    constexpr const char* kOrder = "ZE_ENABLE_PCI_ID_DEVICE_ORDER";
    const auto hierarchy = environment_.raw(kHierarchy);
    if (hierarchy && *hierarchy != "COMPOSITE") {
      keep(kHierarchy, *hierarchy, "Level Zero numbers tiles then, and no mask can select one card");
      return false;
    }
    const char* const reason = "ZE_AFFINITY_MASK then counts cards in the order of their PCI addresses";
    if (!hierarchy) set(kHierarchy, "COMPOSITE", reason);
    if (const auto order = environment_.raw(kOrder)) {
      keep(kOrder, *order, *order == "1" ? "" : "ZE_AFFINITY_MASK may mean another card then; set it to 1");
    } else {
      set(kOrder, "1", reason);
    }
    return true;
  }

  /// How a GPU is called in a list: its number among the visible ones. With MIG the numbers are not those of GPUs, and
  /// a UUID is needed.
  std::string name_of(int index, const std::vector<int>& gpus) const {
    const bool any_mig = std::any_of(gpus.begin(), gpus.end(), [&](int i) { return !gpu(i).mig.empty(); });
    if (any_mig && !gpu(index).uuid.empty()) return gpu(index).uuid;
    return fmt::to_string(std::find(gpus.begin(), gpus.end(), index) - gpus.begin());
  }

  /// Which of the ranks on this rank's GPU it is.
  std::size_t place_on_gpu() const {
    return static_cast<std::size_t>(std::count_if(placements_.begin(), placements_.end(), [&](const Placement& other) {
      return other.gpu == own_.gpu && other.local_rank < own_.local_rank;
    }));
  }

  std::string name_of_own(const std::vector<int>& gpus) const {
    const auto& mig = gpu(*own_.gpu).mig;
    return mig.empty() ? name_of(*own_.gpu, gpus) : mig[place_on_gpu() % mig.size()].uuid;
  }

  /// All GPUs, those of the ranks first and in their order; the same list for all ranks.
  void show_all(Vendor vendor, const char* name, const std::vector<int>& gpus) {
    if (vendor == Vendor::intel) return;  // Level Zero keeps its own order, so a list of all would say nothing
    if (is_own_vendor(vendor) && !gpu(*own_.gpu).mig.empty()) {
      // NVIDIA's MIG user guide, "CUDA visible devices": a process sees the first MIG device of a list, and no other.
      set(name, name_of_own(gpus), "CUDA shows a process one MIG device only; this one is this rank's own");
      return;
    }
    std::vector<int> order;
    const auto append = [&](int index) {
      if (std::find(gpus.begin(), gpus.end(), index) == gpus.end()) return;
      if (std::find(order.begin(), order.end(), index) != order.end() || !gpu(index).mig.empty()) return;
      order.push_back(index);
    };
    for (const Placement& placement : placements_) {
      if (placement.gpu) append(*placement.gpu);
    }
    for (const int index : gpus) append(index);
    if (order.empty() || order == gpus) return;  // it is what the runtime does by itself
    std::vector<std::string> names;
    for (const int index : order) names.push_back(name_of(index, gpus));
    set(name, fmt::to_string(fmt::join(names, ",")), "GPU i of the list is that of local rank i");
  }

  void narrow(const VisibleVariable& variable) {
    std::vector<std::string> own;
    for (const VisibleEntry& entry : variable.entries) {
      if (entry.gpu == *own_.gpu) own.push_back(entry.text);
    }
    if (own.empty()) {
      keep(variable.name, variable.value,
           variable.undecidable ? fmt::format("'{}' cannot be looked up, and the list cannot be narrowed to one GPU",
                                              variable.wrong_entry)
                                : fmt::format("it does not name {}, on which this rank was placed", address_of_own()));
      return;
    }
    const std::string& entry = own[place_on_gpu() % own.size()];  // several: MIG devices of one GPU
    if (entry == variable.value) {
      keep(variable.name, variable.value, "");
    } else {
      set(variable.name, entry, fmt::format("narrowed from '{}' to this rank's own", variable.value));
    }
  }

  std::string conflict_of(const VisibleVariable& variable, const std::vector<int>& gpus, bool last) const {
    if (gpus.empty() || variable.undecidable) return {};
    const std::string stopped =
        variable.wrong_entry.empty() ? std::string()
        : variable.repeats
            ? fmt::format(", because {} names a GPU that is in the list already", variable.wrong_entry)
            : fmt::format(", because the runtime stops at {}, which names no further GPU", variable.wrong_entry);
    if (variable.entries.empty()) return fmt::format("it hides all {} GPUs{}", gpus.size(), stopped);
    const std::size_t ranks = ranks_in_view(gpus);
    if (last && variable.entries.size() < ranks) {
      return fmt::format("it leaves {} of {} GPUs for the {} ranks of this node{}", variable.entries.size(),
                         gpus.size(), ranks, stopped);
    }
    return {};
  }

  /// Without those on GPUs that a device cgroup hides from this rank.
  std::size_t ranks_in_view(const std::vector<int>& gpus) const {
    return static_cast<std::size_t>(std::count_if(placements_.begin(), placements_.end(), [&](const Placement& each) {
      return !each.gpu || std::find(gpus.begin(), gpus.end(), *each.gpu) != gpus.end();
    }));
  }

  const Topology& topology_;
  const std::vector<Placement>& placements_;
  const Placement& own_;
  GpuVisibility visibility_;
  const base::Environment& environment_;
  std::vector<Setting> settings_;
};

}  // namespace

std::vector<Setting> gpu_settings(const Topology& topology, const std::vector<Placement>& placements,
                                  const Placement& own, GpuVisibility visibility,
                                  const base::Environment& environment) {
  return GpuSettings{topology, placements, own, visibility, environment}.derive();
}

}  // namespace ddp::topology
