// The alternatives that a decision rejected, kept to a readable length.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace ddp::topology {

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

}  // namespace ddp::topology
