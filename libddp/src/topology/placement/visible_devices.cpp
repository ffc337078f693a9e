#include "topology/placement/visible_devices.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>

#include <fmt/format.h>

namespace ddp::topology {
namespace {

/// The reader of a list and its rules: CUDA's driver, as PyTorch found out and repeats
/// (torch.cuda._parse_visible_devices); ROCr (core/runtime/amd_filter_device.cpp); HIP
/// (rocclr/device/rocm/rocdevice.cpp); Level Zero's specification.
enum class Runtime { cuda, rocr, hip, level_zero };

struct ListVariable {
  const char* name;
  Runtime runtime;
};

/// A vendor's variables in effect, in the order in which they apply.
std::vector<ListVariable> variables_in_effect(Vendor vendor, const base::Environment& environment) {
  std::vector<ListVariable> names;
  const auto is_set = [&](const char* name) { return environment.raw(name).has_value(); };
  const auto has_text = [&](const char* name) { return !environment.raw(name).value_or("").empty(); };
  switch (vendor) {
    case Vendor::nvidia:
      if (is_set("CUDA_VISIBLE_DEVICES")) names.push_back({"CUDA_VISIBLE_DEVICES", Runtime::cuda});
      break;
    case Vendor::amd:
      if (is_set("ROCR_VISIBLE_DEVICES")) names.push_back({"ROCR_VISIBLE_DEVICES", Runtime::rocr});
      // HIP ignores an empty list.
      if (has_text(kDeviceOrdinal)) names.push_back({kDeviceOrdinal, Runtime::hip});
      for (const char* name : {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}) {
        if (!has_text(name)) continue;
        names.push_back({name, Runtime::hip});
        break;
      }
      break;
    case Vendor::intel:
      if (is_set("ZE_AFFINITY_MASK")) names.push_back({"ZE_AFFINITY_MASK", Runtime::level_zero});
      break;
    case Vendor::other: break;
  }
  return names;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string upper_case(std::string_view text) {
  std::string upper{text};
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return upper;
}

/// Ignores a trailing comma.
std::vector<std::string_view> entries_of(std::string_view list) {
  std::vector<std::string_view> entries;
  while (!list.empty()) {
    const auto comma = list.find(',');
    entries.push_back(list.substr(0, comma));
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return entries;
}

/// Reads the list of one variable.
class ListReader {
 public:
  /// @param numbered the GPUs that numbers refer to
  ListReader(const Topology& topology, const std::vector<int>& numbered, VisibleVariable& variable)
      : topology_(topology), numbered_(numbered), variable_(variable) {}

  void read(Runtime runtime) {
    switch (runtime) {
      case Runtime::cuda: return read_cuda();
      case Runtime::rocr: return read_until_wrong(&ListReader::gpu_of_rocr);
      case Runtime::hip: return read_hip();
      case Runtime::level_zero: return read_level_zero();
    }
  }

 private:
  using Lookup = std::optional<int> (ListReader::*)(std::string_view);

  const Gpu& gpu(int index) const { return topology_.gpus()[static_cast<std::size_t>(index)]; }

  std::optional<int> at_position(long long position) const {
    if (position < 0 || position >= static_cast<long long>(numbered_.size())) return std::nullopt;
    return numbered_[static_cast<std::size_t>(position)];
  }

  void stop_at(std::string_view entry) { variable_.wrong_entry = entry.empty() ? "''" : std::string(entry); }
  void add(std::string_view entry, int index) { variable_.entries.push_back({std::string(entry), index}); }
  bool named(int index) const {
    return std::any_of(variable_.entries.begin(), variable_.entries.end(),
                       [&](const VisibleEntry& seen) { return seen.gpu == index; });
  }

  void read_until_wrong(Lookup lookup) {
    for (std::string_view entry : entries_of(variable_.value)) {
      entry = trimmed(entry);
      const auto index = (this->*lookup)(entry);
      if (!index || named(*index)) return stop_at(entry);
      add(entry, *index);
    }
  }

  // The first entry decides whether all are numbers, GPUs' UUIDs or MIG devices'; an entry of another kind ends the
  // list.
  void read_cuda() {
    const std::vector<std::string_view> words = entries_of(variable_.value);
    const std::string_view kind = words.empty()                       ? ""
                                  : words.front().starts_with("GPU-") ? "GPU-"
                                  : words.front().starts_with("MIG-") ? "MIG-"
                                                                      : "";
    std::vector<std::string_view> listed;
    for (const std::string_view word : words) {
      const bool fits = kind.empty() ? leading_number(word).has_value() : word.starts_with(kind);
      if (!fits) {
        stop_at(trimmed(word));
        break;
      }
      const bool again = std::any_of(listed.begin(), listed.end(), [&](std::string_view seen) {
        return kind.empty() ? leading_number(seen) == leading_number(word) : seen == word;
      });
      if (again) return show_none(word);
      listed.push_back(word);
    }
    for (const std::string_view word : listed) {
      const auto index = kind.empty() ? at_position(leading_number(word).value()) : gpu_with_uuid(word);
      if (!index) return stop_at(trimmed(word));
      if (kind != "MIG-" && named(*index)) return show_none(word);
      add(trimmed(word), *index);
    }
  }

  void show_none(std::string_view again) {
    variable_.entries.clear();
    variable_.repeats = true;
    stop_at(trimmed(again));
  }

  /// Reads as strtol does: "1gpu" is 1. Empty for a negative number.
  static std::optional<long long> leading_number(std::string_view word) {
    word = trimmed(word);
    if (word.starts_with('+')) word.remove_prefix(1);
    long long number = 0;
    const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (status == std::errc::result_out_of_range) return std::numeric_limits<long long>::max();
    return status == std::errc{} && number >= 0 ? std::optional(number) : std::nullopt;
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
    return found.size() == 1 ? std::optional<int>(found[0]) : std::nullopt;  // a prefix must match a single device
  }

  /// The GPUs whose UUIDs have this prefix. AMD's are "GPU-" and 16 hexadecimal digits.
  std::vector<int> gpus_beginning(std::string_view entry, bool any_case) {
    std::vector<int> found;
    bool all_known = true;
    for (const int index : numbered_) {
      all_known = all_known && !gpu(index).uuid.empty();
      const std::string uuid = any_case ? upper_case(gpu(index).uuid) : gpu(index).uuid;
      if (uuid.starts_with(any_case ? upper_case(entry) : std::string(entry))) found.push_back(index);
    }
    if (found.empty() && !all_known) variable_.undecidable = true;
    return found;
  }

  /// A number in C's notation, or a UUID's prefix that matches a single GPU.
  std::optional<int> gpu_of_rocr(std::string_view entry) {
    constexpr std::size_t kShortest = 5;
    constexpr std::size_t kLongest = 20;
    if (entry.starts_with('G') || entry.starts_with('g')) {
      if (entry.size() < kShortest || entry.size() > kLongest) return std::nullopt;
      const std::vector<int> found = gpus_beginning(entry, true);
      return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
    }
    const std::string text{entry};
    char* end = nullptr;
    const long position = std::strtol(text.c_str(), &end, 0);
    return !text.empty() && *end == '\0' ? at_position(position) : std::nullopt;
  }

  /// Plain numbers without blanks, or a UUID's prefix, which means the first matching GPU. Repeated entries count once.
  void read_hip() {
    for (const std::string_view entry : entries_of(variable_.value)) {
      std::optional<int> index;
      if (entry.starts_with("GPU-")) {
        const std::vector<int> found = gpus_beginning(entry, false);
        if (!found.empty()) index = found.front();
      } else if (const auto number = leading_number(entry); number && fmt::to_string(*number) == entry) {
        index = at_position(*number);
      }
      if (!index) return stop_at(entry);
      if (!named(*index)) add(entry, *index);
    }
  }

  // Level Zero keeps its own order, whatever the mask's (Level Zero specification, "Affinity Mask").
  void read_level_zero() {
    for (std::string_view entry : entries_of(variable_.value)) {
      entry = trimmed(entry);
      const std::string_view card = entry.substr(0, entry.find('.'));  // "0.1": the second tile of card 0
      std::size_t position = 0;
      const auto [end, status] = std::from_chars(card.data(), card.data() + card.size(), position);
      const bool number = status == std::errc{} && end == card.data() + card.size();
      const auto index = number ? at_position(static_cast<long long>(position)) : std::nullopt;
      const bool tile = card.size() < entry.size();
      const bool again =
          index && std::any_of(variable_.entries.begin(), variable_.entries.end(),
                               [&](const auto& seen) { return tile ? seen.text == entry : seen.gpu == *index; });
      if (!index || again) {
        stop_at(entry);
        break;
      }
      add(entry, *index);
    }
    std::stable_sort(variable_.entries.begin(), variable_.entries.end(),
                     [](const VisibleEntry& a, const VisibleEntry& b) { return a.gpu < b.gpu; });
  }

  const Topology& topology_;
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
  for (const auto& [name, runtime] : variables_in_effect(vendor, environment)) {
    VisibleVariable variable{
        .name = name, .value = environment.raw(name).value(), .repeats = false, .undecidable = false};
    ListReader{topology, numbered, variable}.read(runtime);
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
    // UUIDs that cannot be looked up do not reveal which GPUs they mean: treat the variable as unset.
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
