#include "report/stack_lines.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "report/report_lines.hpp"

namespace ddp::launcher {
namespace {

using diagnostics::RankStacks;
using diagnostics::StackGroup;
using diagnostics::StackNote;

constexpr std::size_t kMostShown = 16;
constexpr std::size_t kMostBytes = 6144;
constexpr std::size_t kMostHosts = 8;

/// The main thread comes first, so that the rest is left out.
std::string first_lines(const std::string& text) {
  if (text.size() <= kMostBytes) return text;
  const std::size_t end = text.rfind('\n', kMostBytes);
  const std::size_t kept = end == std::string::npos ? kMostBytes : end;
  return fmt::format("{}\n... {} more bytes (--report-json has them)", text.substr(0, kept), text.size() - kept);
}

std::string hosts_of(const StackNote& note) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min(note.hosts.size(), kMostHosts));
  std::string text = fmt::format("{}", fmt::join(note.hosts.begin(), note.hosts.begin() + shown, ", "));
  if (note.hosts.size() > kMostHosts) text += fmt::format(" and {} more nodes", note.hosts.size() - kMostHosts);
  return text;
}

}  // namespace

std::string stack_lines(const RankStacks& stacks) {
  if (stacks.empty()) return {};
  ReportLines lines;
  lines.add("ddprun: where the ranks stood before they were ended:");
  const std::size_t shown = std::min(stacks.groups.size(), kMostShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const StackGroup& group = stacks.groups[i];
    lines.add("  {} ({}):", format_ranks(group.ranks), group.tool);
    lines.indented("    ", first_lines(group.text));
  }
  if (shown < stacks.groups.size())
    lines.add("  ... and {} more stacks (--report-json has all)", stacks.groups.size() - shown);
  for (const StackNote& note : stacks.notes) lines.add("  {}: {}", hosts_of(note), note.text);
  return lines.text();
}

}  // namespace ddp::launcher
