#include "topo/svg_layout.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "topo/picture_legend.hpp"
#include "topo/wording.hpp"

namespace ddp::tools {
namespace {

constexpr double kBoxPadding = 10;
constexpr double kGap = 8;
constexpr double kTitleHeight = 20;
constexpr double kTitleText = 13;
constexpr double kBoxText = 12;
constexpr double kCoreSize = 22;
constexpr double kCoreGap = 3;
constexpr double kDeviceHeight = 38;
constexpr double kDeviceWidth = 190;
constexpr double kBoxSwatch = 18;
constexpr std::size_t kMostSwatches = 3;  // on a device
constexpr double kWidestRow = 1700;
constexpr double kMargin = 16;

void move(Box& box, double dx, double dy) {
  box.rect.x += dx;
  box.rect.y += dy;
  for (TextLine& line : box.lines) {
    line.x += dx;
    line.y += dy;
  }
  for (Box& child : box.children) move(child, dx, dy);
}

/// Puts boxes side by side from (x, y) on, in lines of at most @p width. Returns the extent that they take.
std::pair<double, double> flow(std::vector<Box>& boxes, double x, double y, double width, double gap) {
  double line_x = 0;
  double line_y = 0;
  double line_height = 0;
  double widest = 0;
  for (Box& box : boxes) {
    if (line_x > 0 && line_x + box.rect.width > width) {
      line_y += line_height + gap;
      line_x = line_height = 0;
    }
    move(box, x + line_x - box.rect.x, y + line_y - box.rect.y);
    widest = std::max(widest, line_x + box.rect.width);
    line_x += box.rect.width + gap;
    line_height = std::max(line_height, box.rect.height);
  }
  return {widest, line_y + line_height};
}

/// A frame with a title around blocks of boxes, each block below the other.
Box frame(BoxKind kind, const std::string& title, std::vector<std::pair<std::vector<Box>, double>>&& blocks,
          double width) {
  Box box;
  box.kind = kind;
  double inner = std::min(text_width(title, kTitleText, true), width);
  double y = kBoxPadding + kTitleHeight;
  for (auto& [boxes, gap] : blocks) {
    if (boxes.empty()) continue;
    const auto [block_width, block_height] = flow(boxes, kBoxPadding, y, width, gap);
    inner = std::max(inner, block_width);
    y += block_height + kGap;
    std::move(boxes.begin(), boxes.end(), std::back_inserter(box.children));
  }
  box.rect = {.x = 0, .y = 0, .width = inner + 2 * kBoxPadding, .height = y - kGap + kBoxPadding};
  box.lines.push_back({.text = clipped(title, inner, kTitleText, true),
                       .x = kBoxPadding,
                       .y = kBoxPadding + kTitleText,
                       .size = kTitleText,
                       .bold = true,
                       .centred = false});
  box.hover = title;
  return box;
}

/// Draws one kind of node.
class MachineLayout {
 public:
  explicit MachineLayout(const NodeKind& kind) : kind_(kind), topology_(kind.topology) {
    for (const RankRow& row : kind.rows) {
      if (row.placement.gpu) gpu_ranks_[*row.placement.gpu].push_back(row.local_rank);
      if (!row.placement.nics.empty()) nic_ranks_[row.placement.nics.front()].push_back(row.local_rank);
    }
  }

  Box machine() const {
    std::vector<Box> packages;
    for (std::size_t i = 0; i < topology_.packages().size(); ++i) {
      const int index = static_cast<int>(i);
      const Package& package = topology_.packages()[i];
      const std::string title = fmt::format("package {}", package.os_index >= 0 ? package.os_index : index);
      packages.push_back(frame(BoxKind::package, title, {{places_in(index), kGap}}, kWidestRow));
    }
    std::string title = machine_summary(topology_);
    title = (kind_.hosts.empty() ? source_name() : host_list(kind_.hosts)) + ": " + title;
    return frame(BoxKind::machine, title, {{std::move(packages), kGap}, {places_in(-1), kGap}},
                 kWidestRow + 2 * kBoxPadding);
  }

 private:
  /// NUMA nodes of a package (-1: those of none), and what is attached to the package as a whole.
  std::vector<Box> places_in(int package) const {
    std::vector<Box> places;
    for (std::size_t i = 0; i < topology_.numa_nodes().size(); ++i) {
      const NumaNode& node = topology_.numa_nodes()[i];
      if (node.package != package) continue;
      const std::string memory =
          node.memory_bytes > 0 ? fmt::format(" ({})", memory_text(node.memory_bytes)) : std::string();
      const auto here = [i](int, int numa_node) { return numa_node == static_cast<int>(i); };
      places.push_back(place(fmt::format("NUMA node {}{}", node.os_index, memory), here));
    }
    const auto here = [package](int own_package, int numa_node) { return numa_node < 0 && own_package == package; };
    Box rest = place(package < 0 ? "place not known" : "near to several NUMA nodes", here);
    if (!rest.children.empty()) places.push_back(std::move(rest));
    return places;
  }

  /// Of a file, its name without folders.
  std::string source_name() const {
    const std::string& source = topology_.source();
    const auto slash = source.rfind('/');
    return source.starts_with("file '") && slash != std::string::npos ? "file '" + source.substr(slash + 1) : source;
  }

  template <class Here>
  Box place(const std::string& title, Here here) const {
    std::vector<Box> cores;
    for (const Core& core : topology_.cores()) {
      if (here(core.package, core.numa_node)) cores.push_back(core_box(core));
    }
    std::vector<Box> devices;
    for (const Gpu& gpu : topology_.gpus()) {
      if (here(gpu.locality.package, gpu.locality.numa_node)) devices.push_back(gpu_box(gpu));
    }
    for (const Nic& nic : topology_.nics()) {
      if (nic.virtual_function && !nic.usable) continue;
      if (here(nic.locality.package, nic.locality.numa_node)) devices.push_back(nic_box(nic));
    }
    // Two devices side by side, and cores in lines of about the same width; more cores make it wider.
    const double columns = std::max(16.0, std::ceil(std::sqrt(static_cast<double>(cores.size()) * 2)));
    return frame(BoxKind::numa, title, {{std::move(cores), kCoreGap}, {std::move(devices), kGap}},
                 columns * (kCoreSize + kCoreGap) - kCoreGap);
  }

  Box core_box(const Core& core) const {
    Box box;
    box.kind = BoxKind::core;
    box.rect = {.x = 0, .y = 0, .width = kCoreSize, .height = kCoreSize};
    box.available = core.cpus.intersects(kind_.allowed);
    std::vector<int> ranks;
    for (const RankRow& row : kind_.rows) {
      if (row.placement.cpus.intersects(core.cpus)) ranks.push_back(row.local_rank);
    }
    box.hover = fmt::format("core with PUs {}", core.cpus.to_string());
    if (!box.available) box.hover += ", not allowed";
    if (ranks.empty()) return box;
    box.local_rank = ranks.front();
    box.hover += fmt::format(", local rank {}", number_list(ranks));
    label(box, fmt::format("{}{}", ranks.front(), ranks.size() > 1 ? "+" : ""));
    return box;
  }

  /// Puts a number in the middle, where it is short enough to be read; of "18+" at least the "+".
  static void label(Box& box, std::string text) {
    if (text_width(text, kSmallText, false) > box.rect.width) text = text.ends_with('+') ? "+" : "";
    if (text.empty()) return;
    box.lines.push_back({.text = text,
                         .x = box.rect.x + box.rect.width / 2,
                         .y = box.rect.y + box.rect.height / 2 + kSmallText * 0.36,
                         .size = kSmallText,
                         .bold = false,
                         .centred = true});
  }

  Box gpu_box(const Gpu& gpu) const {
    const std::string below = gpu.visible ? gpu.pci.to_string() : "may not be used";
    Box box = device_box(BoxKind::gpu, fmt::format("GPU {} {}", gpu.index, short_model(gpu.model)), below, gpu_ranks_,
                         gpu.index);
    box.available = gpu.visible;
    box.hover = fmt::format("GPU {} {} {} {}", gpu.index, gpu.pci.to_string(), gpu.model, gpu.hidden_reason);
    return box;
  }

  Box nic_box(const Nic& nic) const {
    const std::string below = nic.usable ? rate_text(nic.rate_gbps) : nic.unusable_reason;
    Box box = device_box(BoxKind::nic, nic.name(), below, nic_ranks_, nic.index);
    box.available = nic.usable;
    box.hover = fmt::format("NIC {} {} {}", nic.name(), nic.model, nic.unusable_reason);
    return box;
  }

  static Box device_box(BoxKind kind, const std::string& name, const std::string& below,
                        const std::map<int, std::vector<int>>& ranks_of, int index) {
    Box box;
    box.kind = kind;
    box.rect = {.x = 0, .y = 0, .width = kDeviceWidth, .height = kDeviceHeight};
    const auto found = ranks_of.find(index);
    const std::vector<int> ranks = found == ranks_of.end() ? std::vector<int>{} : found->second;
    double right = kDeviceWidth - 6;
    for (std::size_t i = std::min(ranks.size(), kMostSwatches); i-- > 0;) {
      Box swatch;
      swatch.kind = BoxKind::swatch;
      right -= kBoxSwatch;
      swatch.rect = {.x = right, .y = (kDeviceHeight - kBoxSwatch) / 2, .width = kBoxSwatch, .height = kBoxSwatch};
      right -= 3;
      swatch.local_rank = ranks[i];
      const bool last_of_many = i + 1 == kMostSwatches && ranks.size() > kMostSwatches;
      swatch.hover =
          fmt::format("local rank {}", last_of_many ? number_list({ranks.begin() + kMostSwatches - 1, ranks.end()})
                                                    : fmt::to_string(ranks[i]));
      label(swatch, fmt::format("{}{}", ranks[i], last_of_many ? "+" : ""));
      box.children.push_back(std::move(swatch));
    }
    const double room = right - 8;
    box.lines.push_back({.text = clipped(name, room, kBoxText, false),
                         .x = 8,
                         .y = 16,
                         .size = kBoxText,
                         .bold = false,
                         .centred = false});
    box.lines.push_back({.text = clipped(below, room, kSmallText, false),
                         .x = 8,
                         .y = 31,
                         .size = kSmallText,
                         .bold = false,
                         .centred = false});
    return box;
  }

  const NodeKind& kind_;
  const Topology& topology_;
  std::map<int, std::vector<int>> gpu_ranks_;
  std::map<int, std::vector<int>> nic_ranks_;
};

}  // namespace

std::string_view to_string(BoxKind kind) noexcept {
  switch (kind) {
    case BoxKind::machine: return "machine";
    case BoxKind::package: return "package";
    case BoxKind::numa: return "numa";
    case BoxKind::core: return "core";
    case BoxKind::gpu: return "gpu";
    case BoxKind::nic: return "nic";
    case BoxKind::swatch: return "swatch";
    case BoxKind::legend: break;
  }
  return "legend";
}

double text_width(std::string_view text, double size, bool bold) {
  return static_cast<double>(text.size()) * size * (bold ? 0.73 : 0.64);
}

std::string clipped(const std::string& text, double width, double size, bool bold) {
  if (text_width(text, size, bold) <= width) return text;
  std::string shorter = text;
  do {
    shorter.pop_back();
  } while (shorter.size() > 1 && text_width(shorter + "...", size, bold) > width);
  return shorter + "...";
}

Picture lay_out(const Report& report) {
  Picture picture;
  double y = kMargin;
  const auto add = [&](Box box) {
    move(box, kMargin, y);
    y += box.rect.height + kMargin;
    picture.width = std::max(picture.width, box.rect.x + box.rect.width + kMargin);
    picture.boxes.push_back(std::move(box));
  };
  for (const NodeKind& kind : report.kinds) {
    Box machine = MachineLayout{kind}.machine();
    const double width = machine.rect.width;
    add(std::move(machine));
    add(lay_out_legend(kind, width));
  }
  picture.height = y;
  return picture;
}

}  // namespace ddp::tools
