#include "topo/wording.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::tools {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Counts of equal texts in the order of first appearance: "8x A, 2x B".
std::string tally(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, int>> counts;
  for (const std::string& text : texts) {
    const auto known =
        std::find_if(counts.begin(), counts.end(), [&](const auto& entry) { return entry.first == text; });
    if (known == counts.end()) {
      counts.emplace_back(text, 1);
    } else {
      ++known->second;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [text, count] : counts) parts.push_back(fmt::format("{}x {}", count, text));
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// A host name taken apart at its last number before the first dot.
struct NumberedName {
  std::string before;
  std::string digits;  ///< empty: no number
  std::string after;

  explicit NumberedName(const std::string& name) {
    const auto dot = std::min(name.find('.'), name.size());
    auto end = dot;
    while (end > 0 && !is_digit(name[end - 1])) --end;
    auto begin = end;
    while (begin > 0 && is_digit(name[begin - 1]) && end - begin < 9) --begin;
    before = name.substr(0, begin);
    digits = name.substr(begin, end - begin);
    after = name.substr(end);
  }
  int number() const { return digits.empty() ? 0 : std::stoi(digits); }
  /// "08" then "09", "9" then "10", but not "9" then "010".
  bool followed_by(const NumberedName& next) const {
    const bool same_form = digits.size() == next.digits.size() || (digits.front() != '0' && next.digits.front() != '0');
    return same_form && next.number() == number() + 1;
  }
};

std::string fold_names(const std::vector<NumberedName>& names) {
  const NumberedName& first = names.front();
  if (names.size() == 1) return first.before + first.digits + first.after;
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < names.size();) {
    std::size_t last = i;
    while (last + 1 < names.size() && names[last].followed_by(names[last + 1])) ++last;
    runs.push_back(last == i ? names[i].digits : fmt::format("{}-{}", names[i].digits, names[last].digits));
    i = last + 1;
  }
  return fmt::format("{}[{}]{}", first.before, fmt::join(runs, ","), first.after);
}

}  // namespace

std::string number_list(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    const int step = i + 1 < numbers.size() ? numbers[i + 1] - numbers[i] : 1;
    while (last + 1 < numbers.size() && numbers[last + 1] - numbers[last] == step) ++last;
    const std::size_t count = last - i + 1;
    if (step == 1 && count >= 2) {
      runs.push_back(fmt::format("{}-{}", numbers[i], numbers[last]));
    } else if (count >= 4) {
      runs.push_back(fmt::format("{}-{}:{}", numbers[i], numbers[last], step));
    } else {
      runs.push_back(fmt::to_string(numbers[i]));
      last = i;
    }
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(runs, ","));
}

std::string host_list(const std::vector<std::string>& hosts) {
  std::vector<std::vector<NumberedName>> groups;
  for (const std::string& host : hosts) {
    const NumberedName name{host};
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& known) {
      return !name.digits.empty() && !known.front().digits.empty() && known.front().before == name.before &&
             known.front().after == name.after;
    });
    if (group == groups.end()) {
      groups.push_back({name});
    } else {
      group->push_back(name);
    }
  }
  std::vector<std::string> parts;
  for (auto& group : groups) {
    std::stable_sort(group.begin(), group.end(), [](const auto& a, const auto& b) { return a.number() < b.number(); });
    parts.push_back(fold_names(group));
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string short_model(std::string_view model) {
  const auto open = model.find('[');
  const auto close = model.rfind(']');
  if (open != std::string_view::npos && close != std::string_view::npos && close > open + 1) {
    model = model.substr(open + 1, close - open - 1);
  }
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view word : {"NVIDIA ", "AMD ", "Intel(R) ", "Intel ", "Tesla ", "Instinct ", "INSTINCT "}) {
      if (!model.starts_with(word) || model.size() == word.size()) continue;
      model.remove_prefix(word.size());
      more = true;
    }
  }
  return std::string(model);
}

std::string rate_text(double gbps) { return gbps > 0 ? fmt::format("{:.4g} Gbit/s", gbps) : "unknown rate"; }

std::string memory_text(unsigned long long bytes) {
  constexpr double kMiB = 1024.0 * 1024;
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? fmt::format("{:.3g} MiB", mib) : fmt::format("{:.0f} GiB", mib / 1024);
}

std::string gpu_name(const Gpu& gpu) { return fmt::format("GPU {} ({})", gpu.index, gpu.pci.to_string()); }

std::string gpu_summary(const Topology& topology) {
  std::vector<std::string> texts;
  for (const Gpu& gpu : topology.gpus()) texts.push_back(gpu.model);
  return tally(texts);
}

std::string nic_summary(const Topology& topology) {
  std::vector<std::string> texts;
  for (const Nic& nic : topology.nics()) {
    const std::string model = short_model(nic.model);
    if (nic.usable) texts.push_back(fmt::format("{}{}{}", model, model.empty() ? "" : " ", rate_text(nic.rate_gbps)));
  }
  const std::size_t unusable = topology.nics().size() - texts.size();
  std::string text = tally(texts);
  if (unusable > 0) text += fmt::format("{}{} not usable", text.empty() ? "" : ", ", unusable);
  return text;
}

std::string machine_summary(const Topology& topology) {
  return fmt::format("{}, {}, {}, {}", counted(topology.packages().size(), "package"),
                     counted(topology.numa_nodes().size(), "NUMA node"), counted(topology.cores().size(), "core"),
                     counted(static_cast<std::size_t>(topology.cpus().count()), "PU"));
}

std::string numa_list(const Topology& topology, const std::vector<int>& numa_nodes) {
  if (numa_nodes.empty()) return "-";
  std::vector<int> numbers;
  for (const int node : numa_nodes)
    numbers.push_back(topology.numa_nodes().at(static_cast<std::size_t>(node)).os_index);
  return number_list(std::move(numbers));
}

std::string path_word(const Topology& topology, const Placement& placement) {
  if (placement.nics.empty()) return "-";
  const Nic& nic = topology.nics().at(static_cast<std::size_t>(placement.nics.front()));
  if (placement.gpu) {
    const Gpu& gpu = topology.gpus().at(static_cast<std::size_t>(*placement.gpu));
    return std::string(to_string(topology.distance(gpu, nic).path));
  }
  if (placement.numa_nodes.empty()) return "-";
  const NumaNode& node = topology.numa_nodes().at(static_cast<std::size_t>(placement.numa_nodes.front()));
  return std::string(to_string(topology.distance(nic.locality, node).path));
}

std::string plain_ascii(std::string_view text) {
  std::string plain{text};
  for (char& c : plain) {
    if (c < ' ' || c > '~') c = '?';
  }
  return plain;
}

}  // namespace ddp::tools
