// Where ranks stood before ddprun ended them because nothing moved: equal stacks once, with their ranks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddp::diagnostics {

/// Ranks whose stacks read the same.
struct StackGroup {
  std::vector<int> ranks{};  ///< ascending; local ranks within a node
  std::string tool;          ///< what read them: "py-spy", "gdb" or "proc" (/proc); "none"
  std::string text;          ///< lines, without a newline at the end; see stack_text.hpp
  bool operator==(const StackGroup&) const = default;
};

/// Something that the reader should know: a tool that is missing, or why it failed.
struct StackNote {
  std::vector<std::string> hosts{};
  std::string text;
  bool operator==(const StackNote&) const = default;
};

/// Limit of all texts of one node, and of a job, in bytes: each differing stack counts once.
inline constexpr std::size_t kMaxNodeStackBytes = std::size_t{2} << 20U;
inline constexpr std::size_t kMaxJobStackBytes = std::size_t{32} << 20U;
/// Limit of notes.
inline constexpr std::size_t kMaxStackNotes = 32;

struct RankStacks {
  std::vector<StackGroup> groups;  ///< in the order of their first ranks
  std::vector<StackNote> notes;

  bool empty() const { return groups.empty() && notes.empty(); }
  /// Joins those that read the same. Those that would make more than @p max_bytes lose their text.
  void add(StackGroup group, std::size_t max_bytes);
  void note(const std::string& host, const std::string& text);
};

}  // namespace ddp::diagnostics
