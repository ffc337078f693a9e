// The two matrices at the end of the table.
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "topo/table.hpp"
#include "topo/text_grid.hpp"
#include "topo/wording.hpp"

namespace ddp::tools {
namespace {

constexpr std::array<std::pair<Path, std::string_view>, 8> kMeanings = {{
    {Path::self, "the device itself"},
    {Path::nvlink, "NVLink or XGMI, also through switches"},
    {Path::pix, "at most one PCIe switch"},
    {Path::pxb, "several PCIe switches, but no host bridge"},
    {Path::phb, "a PCIe host bridge"},
    {Path::node, "host bridges of one NUMA node"},
    {Path::sys, "the connection between NUMA nodes"},
    {Path::unknown, "the place of one of them is not known"},
}};

std::vector<Nic> usable_nics(const Topology& topology) {
  std::vector<Nic> usable;
  for (const Nic& nic : topology.nics()) {
    if (nic.usable) usable.push_back(nic);
  }
  return usable;
}

/// One row for each GPU, with the path to each of @p columns. Notes which words occur.
template <class Device, class Name>
std::string matrix(const Topology& topology, const std::vector<Device>& columns, std::string corner, Name name,
                   std::set<std::string>& seen) {
  TextGrid grid;
  std::vector<std::string> head{std::move(corner)};
  for (const Device& column : columns) head.push_back(name(column));
  grid.add_row(std::move(head));
  for (const Gpu& gpu : topology.gpus()) {
    std::vector<std::string> cells{fmt::format("GPU{}", gpu.index)};
    for (const Device& column : columns) {
      cells.emplace_back(to_string(topology.distance(gpu, column).path));
      seen.insert(cells.back());
    }
    grid.add_row(std::move(cells));
  }
  return grid.to_string(2);
}

}  // namespace

std::string format_matrices(const Topology& topology) {
  if (topology.gpus().empty()) return {};
  std::set<std::string> seen;
  std::string text;
  if (const auto nics = usable_nics(topology); !nics.empty()) {
    text += "GPUs and NICs:\n";
    text += matrix(
                topology, nics, "", [](const Nic& nic) { return nic.name(); }, seen) +
            "\n";
  }
  if (topology.gpus().size() > 1) {
    text += "GPUs:\n";
    text += matrix(
        topology, topology.gpus(), "", [](const Gpu& gpu) { return fmt::format("GPU{}", gpu.index); }, seen);
    text += "\n";
  }
  if (text.empty()) return {};
  return text + format_path_legend(seen);
}

std::string format_path_legend(const std::set<std::string>& words) {
  TextGrid legend;
  for (const auto& [path, meaning] : kMeanings) {
    const std::string word{to_string(path)};
    if (words.contains(word)) legend.add_row({word, std::string(meaning)});
  }
  return legend.empty() ? std::string() : legend.to_string(2);
}

}  // namespace ddp::tools
