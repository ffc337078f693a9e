#include "topology/placement/visible_devices.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "topology/placement/settings.hpp"

namespace ddp::topology {
namespace {

/// The names of a vendor's variables in the order in which they act.
std::vector<std::string_view> variable_names(Vendor vendor) {
  switch (vendor) {
    case Vendor::nvidia: return {"CUDA_VISIBLE_DEVICES"};
    case Vendor::amd: return {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"};
    case Vendor::intel: return {"ZE_AFFINITY_MASK"};
    case Vendor::other: break;
  }
  return {};
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Reads the list of one variable.
class ListReader {
 public:
  /// @param numbered the GPUs that numbers mean.
  ListReader(const Topology& topology, Vendor vendor, const std::vector<int>& numbered, VisibleVariable& variable)
      : topology_(topology), vendor_(vendor), numbered_(numbered), variable_(variable) {}

  void read() {
    std::string_view rest = variable_.value;
    while (!rest.empty()) {
      const auto comma = rest.find(',');
      const std::string_view entry = trimmed(rest.substr(0, comma));
      const auto gpu = gpu_of(entry);
      if (!gpu || repeated(entry, *gpu)) {
        variable_.wrong_entry = entry.empty() ? "''" : std::string(entry);
        break;
      }
      variable_.entries.push_back({std::string(entry), *gpu});
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    // Level Zero keeps its own order, whatever that of the mask (Level Zero specification, "Affinity Mask").
    if (vendor_ == Vendor::intel) {
      std::stable_sort(variable_.entries.begin(), variable_.entries.end(),
                       [](const VisibleEntry& a, const VisibleEntry& b) { return a.gpu < b.gpu; });
    }
  }

 private:
  const Gpu& gpu(int index) const { return topology_.gpus()[static_cast<std::size_t>(index)]; }

  std::optional<int> gpu_of(std::string_view entry) {
    if (vendor_ == Vendor::intel) entry = entry.substr(0, entry.find('.'));  // "0.1": the second tile of card 0
    std::size_t position = 0;
    const auto [end, status] = std::from_chars(entry.data(), entry.data() + entry.size(), position);
    if (!entry.empty() && status == std::errc{} && end == entry.data() + entry.size()) {
      return position < numbered_.size() ? std::optional<int>(numbered_[position]) : std::nullopt;
    }
    if (entry.starts_with("GPU-") || entry.starts_with("MIG-")) return gpu_with_uuid(entry);
    return std::nullopt;
  }

  std::optional<int> gpu_with_uuid(std::string_view entry) {
    // Drivers before R470 wrote "MIG-GPU-<uuid>/<GPU instance>/<compute instance>".
    const bool old_mig = entry.starts_with("MIG-GPU-");
    const std::string_view wanted = old_mig ? entry.substr(4, entry.find('/') - 4) : entry;
    std::vector<int> found;
    bool all_known = true;
    for (const int index : numbered_) {
      all_known = all_known && !gpu(index).uuid.empty();
      if (wanted.starts_with("GPU-") && gpu(index).uuid.starts_with(wanted)) found.push_back(index);
      for (const MigDevice& mig : gpu(index).mig) {
        if (mig.uuid.starts_with(wanted)) found.push_back(index);
      }
    }
    if (found.empty() && !all_known) variable_.undecidable = true;
    return found.size() == 1 ? std::optional<int>(found[0]) : std::nullopt;  // a beginning must be of one device only
  }

  /// A device counts once; the parts of a GPU with MIG and tiles of an Intel card are devices of their own.
  bool repeated(std::string_view entry, int index) const {
    const bool part = entry.starts_with("MIG-") || (vendor_ == Vendor::intel && entry.find('.') != entry.npos);
    return std::any_of(variable_.entries.begin(), variable_.entries.end(),
                       [&](const VisibleEntry& seen) { return part ? seen.text == entry : seen.gpu == index; });
  }

  const Topology& topology_;
  Vendor vendor_;
  const std::vector<int>& numbered_;
  VisibleVariable& variable_;
};

void append_once(std::vector<int>& list, int index) {
  if (std::find(list.begin(), list.end(), index) == list.end()) list.push_back(index);
}

}  // namespace

std::vector<int> visible_gpus(const Topology& topology, Vendor vendor) {
  std::vector<int> indices;
  for (const Gpu& gpu : topology.gpus()) {
    if (gpu.vendor == vendor && gpu.visible) indices.push_back(gpu.index);
  }
  return indices;
}

std::vector<VisibleVariable> visible_variables(const Topology& topology, Vendor vendor,
                                               const base::Environment& environment) {
  std::vector<VisibleVariable> variables;
  std::vector<int> numbered = visible_gpus(topology, vendor);
  for (const std::string_view name : variable_names(vendor)) {
    const auto value = environment.raw(name);
    if (!value) continue;
    VisibleVariable variable{std::string(name), *value, {}, {}, false};
    ListReader{topology, vendor, numbered, variable}.read();
    if (!variable.undecidable) {
      numbered.clear();
      for (const VisibleEntry& entry : variable.entries) numbered.push_back(entry.gpu);
    }
    variables.push_back(std::move(variable));
  }
  return variables;
}

std::optional<std::vector<int>> gpus_named_by(const Topology& topology, const base::Environment& environment) {
  std::vector<int> named;
  bool any = false;
  for (const Vendor vendor : {Vendor::nvidia, Vendor::amd, Vendor::intel, Vendor::other}) {
    std::vector<int> left = visible_gpus(topology, vendor);
    if (left.empty()) continue;
    // UUIDs that cannot be looked up say nothing about which GPUs are meant: as if the variable were not set.
    for (const VisibleVariable& variable : visible_variables(topology, vendor, environment)) {
      if (variable.undecidable) continue;
      any = true;
      left.clear();
      for (const VisibleEntry& entry : variable.entries) append_once(left, entry.gpu);
    }
    named.insert(named.end(), left.begin(), left.end());
  }
  return any ? std::optional(std::move(named)) : std::nullopt;
}

}  // namespace ddp::topology
