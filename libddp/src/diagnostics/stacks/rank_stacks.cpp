#include "diagnostics/stacks/rank_stacks.hpp"

#include <algorithm>
#include <utility>

namespace ddp::diagnostics {

void RankStacks::add(StackGroup group, std::size_t max_bytes) {
  if (group.ranks.empty()) return;
  auto equal = std::find_if(groups.begin(), groups.end(), [&](const StackGroup& known) {
    return known.tool == group.tool && known.text == group.text;
  });
  if (equal == groups.end()) {
    std::size_t bytes = group.text.size();
    for (const StackGroup& known : groups) bytes += known.text.size();
    if (bytes > max_bytes) {
      group.text = "(left out: the stacks of other ranks are too long)";
      return add(std::move(group), max_bytes + group.text.size());
    }
    groups.push_back(std::move(group));
    equal = groups.end() - 1;
  } else {
    equal->ranks.insert(equal->ranks.end(), group.ranks.begin(), group.ranks.end());
  }
  std::sort(equal->ranks.begin(), equal->ranks.end());
  std::sort(groups.begin(), groups.end(),
            [](const StackGroup& a, const StackGroup& b) { return a.ranks.front() < b.ranks.front(); });
}

void RankStacks::note(const std::string& host, const std::string& text) {
  auto known = std::find_if(notes.begin(), notes.end(), [&](const StackNote& each) { return each.text == text; });
  if (known == notes.end()) {
    if (notes.size() >= kMaxStackNotes) return;
    known = notes.insert(known, {.text = text});
  }
  if (std::find(known->hosts.begin(), known->hosts.end(), host) == known->hosts.end()) known->hosts.push_back(host);
}

}  // namespace ddp::diagnostics
