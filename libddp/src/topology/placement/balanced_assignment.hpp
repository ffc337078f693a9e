// Assigns few targets to many users as evenly as possible: NICs to ranks, and GPUs to ranks whose masks differ.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace ddp::topology {

/// A target that a user may get.
struct Option {
  int target = 0;
  int cost = 0;  ///< smaller is better; decides only where the use of the targets is equally even
  friend bool operator==(const Option&, const Option&) = default;
};

/// The target of each user; -1 for a user without options. The sum of the squares of the targets' numbers of users is
/// minimal: no target is used twice while one of its users could have an unused one, directly or after others moved.
/// Among such assignments the sum of costs is the smallest. Users with equal options have ascending targets.
///
/// A minimum-cost flow by successive shortest paths: O(U^2 * T) for U users and T targets when costs seldom conflict,
/// at most T times that.
/// @param options of each user; targets are in [0, num_targets) and occur once for each user.
std::vector<int> assign_balanced(const std::vector<std::vector<Option>>& options, int num_targets);

// The alternatives that a decision rejected, kept to a readable length.

/// Collects Decision::alternatives: at most kMost entries; the last one counts those left out.
class Alternatives {
 public:
  static constexpr std::size_t kMost = 16;

  /// @param describe returns the entry; called only for entries that are kept: ranks times devices can be many.
  template <class Describe>
  void add(Describe&& describe) {
    if (++count_ <= kMost) entries_.push_back(describe());
  }

  std::vector<std::string> take() && {
    if (count_ > kMost) entries_.back() = fmt::format("and {} more", count_ - (kMost - 1));
    return std::move(entries_);
  }

 private:
  std::vector<std::string> entries_;
  std::size_t count_ = 0;
};

// Places in tables as numbers that may be negative for "none", as placement keeps them.

/// @p index as standard containers want it.
constexpr std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }

}  // namespace ddp::topology
