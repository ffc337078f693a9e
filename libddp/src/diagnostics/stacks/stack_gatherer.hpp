// Reads the stacks of a node's ranks, several at a time, on threads of its own: a tool or /proc may hang, and the
// thread that obeys orders must not wait for it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/message_fields.hpp"
#include "diagnostics/stacks/stack_tools.hpp"

namespace ddp::diagnostics {

// Where ranks stood before ddprun ended them because nothing moved: equal stacks once, with their ranks.

/// Ranks whose stacks read the same.
struct StackGroup {
  std::vector<int> ranks{};  ///< ascending; local ranks within a node
  std::string tool;          ///< what read them: "py-spy", "gdb" or "proc" (/proc); "none"
  std::string text;          ///< lines, without a newline at the end; see proc_stack.hpp
  bool operator==(const StackGroup&) const = default;
};
constexpr auto description(const StackGroup*) {
  return base::describe({"StackGroup"}, base::fields<&StackGroup::ranks>(base::Rule{.least = 0, .fewest = 1}),
                        base::fields<&StackGroup::tool>(base::kPlainName), base::fields<&StackGroup::text>());
}

/// Something that the reader should know: a tool that is missing, or why it failed.
struct StackNote {
  std::vector<std::string> hosts{};
  std::string text;
  bool operator==(const StackNote&) const = default;
};
constexpr auto description(const StackNote*) {
  return base::describe({"StackNote"}, base::fields<&StackNote::hosts>(base::kPlainName),
                        base::fields<&StackNote::text>());
}

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
constexpr auto description(const RankStacks*) {
  return base::describe({"RankStacks"}, base::fields<&RankStacks::groups, &RankStacks::notes>());
}

struct RankProcess {
  int rank;
  pid_t pid;
};

/// Not thread-safe. Destruction leaves threads that hang behind; they touch nothing of the object.
class StackGatherer {
 public:
  /// Begins. @p deadline limits all of it. Throws Error(system) when there can be no thread.
  StackGatherer(std::vector<RankProcess> ranks, StackTools tools, std::string host, Deadline deadline);
  StackGatherer& operator=(StackGatherer&&) = delete;
  ~StackGatherer();

  /// Readable when all stacks are there.
  int fd() const;
  /// When to take() what there is, even so.
  Deadline deadline() const { return deadline_; }
  /// All stacks so far, and a note on the ranks that have none; nothing before fd() is readable or the deadline has
  /// passed.
  std::optional<RankStacks> take();

 private:
  struct Shared;
  Deadline deadline_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ddp::diagnostics
