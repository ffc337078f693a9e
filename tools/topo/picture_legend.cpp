#include "topo/picture_legend.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "topo/wording.hpp"

namespace ddp::tools {
namespace {

constexpr std::size_t kMostEntries = 64;
constexpr double kPadding = 10;
constexpr double kText = 12;
constexpr double kLine = 22;
constexpr double kSwatch = 16;
constexpr double kColumn = 360;
constexpr double kWidestText = 800;

using Rows = std::vector<const RankRow*>;

/// Ranks by the NUMA nodes of their cores, in the order of the ranks.
std::vector<std::pair<std::string, Rows>> group_rows(const NodeKind& kind) {
  std::vector<std::pair<std::string, Rows>> groups;
  for (const RankRow& row : kind.rows) {
    const std::string nodes = numa_list(kind.topology, row.placement.numa_nodes);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.first == nodes; });
    if (group == groups.end()) group = groups.insert(groups.end(), {nodes, {}});
    group->second.push_back(&row);
  }
  return groups;
}

std::string ranks_text(const Rows& rows) {
  std::vector<int> ranks;
  for (const RankRow* row : rows) {
    for (const RankIdentity& identity : row->ranks) ranks.push_back(identity.rank);
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", number_list(ranks));
}

std::string entry_text(const NodeKind& kind, const RankRow& row) {
  std::string text = ranks_text({&row});
  if (row.ranks.size() > 1 || row.ranks.front().rank != row.local_rank) {
    text += fmt::format(" (local {})", row.local_rank);
  }
  const Placement& placement = row.placement;
  if (placement.gpu) text += fmt::format(": GPU {}", *placement.gpu);
  if (!placement.nics.empty()) {
    const Nic& nic = kind.topology.nics().at(static_cast<std::size_t>(placement.nics.front()));
    text += fmt::format("{} {}", placement.gpu ? "," : ":", nic.name());
  }
  const bool first = !placement.gpu && placement.nics.empty();
  text += fmt::format("{} {}", first ? ":" : ",", counted(static_cast<std::size_t>(placement.num_cores), "core"));
  return clipped(text, kWidestText, kText, false);
}

TextLine text_at(std::string text, double x, double y, bool bold) {
  return {.text = std::move(text), .x = x, .y = y, .size = kText, .bold = bold, .centred = false};
}

}  // namespace

Box lay_out_legend(const NodeKind& kind, double width) {
  Box legend;
  legend.kind = BoxKind::legend;
  legend.hover = "ranks and their colours";
  double longest = 0;
  for (const RankRow& row : kind.rows) {
    longest = std::max(longest, text_width(entry_text(kind, row), kText, false));
  }
  const double column = std::max(kColumn, longest + kSwatch + 3 * kPadding);
  const double columns = std::max(1.0, std::floor((width - 2 * kPadding) / column));
  const auto groups = group_rows(kind);
  // Small groups stand side by side.
  std::size_t largest = 1;
  for (const auto& [numa, rows] : groups) largest = std::max(largest, rows.size());
  const double own_columns = std::min(columns, static_cast<double>(largest));
  const bool beside = kind.rows.size() <= kMostEntries;
  const auto in_line = beside ? static_cast<std::size_t>(std::floor(columns / own_columns)) : std::size_t{1};
  double top = kPadding;  // of the line of groups
  double bottom = top;    // of its longest one
  double y = top;
  double widest = width;
  for (std::size_t number = 0; number < groups.size(); ++number) {
    const auto& [numa, rows] = groups[number];
    if (number % in_line == 0) top = bottom;
    y = top;
    const double left = kPadding + static_cast<double>(number % in_line) * own_columns * column;
    std::string heading = fmt::format("NUMA node {}", numa);
    if (kind.rows.size() > kMostEntries) heading += ": " + ranks_text(rows);
    heading = clipped(heading, kWidestText, kText, true);
    widest = std::max(widest, left + text_width(heading, kText, true) + kPadding);
    legend.lines.push_back(text_at(std::move(heading), left, y + kText, true));
    y += kLine;
    bottom = std::max(bottom, y);
    if (!beside) continue;
    double place = 0;
    for (const RankRow* row : rows) {
      if (place == own_columns) {
        place = 0;
        y += kLine;
      }
      const double x = left + place * column;
      Box swatch;
      swatch.kind = BoxKind::swatch;
      swatch.rect = {.x = x, .y = y, .width = kSwatch, .height = kSwatch};
      swatch.local_rank = row->local_rank;
      swatch.hover = fmt::format("local rank {}", row->local_rank);
      legend.children.push_back(std::move(swatch));
      legend.lines.push_back(text_at(entry_text(kind, *row), x + kSwatch + kPadding, y + kText, false));
      widest = std::max(widest, x + column + kPadding);
      ++place;
    }
    y += kLine;
    bottom = std::max(bottom, y);
  }
  legend.rect = {.x = 0, .y = 0, .width = widest, .height = bottom + kPadding / 2};
  return legend;
}

}  // namespace ddp::tools
