// After how many items a sequence repeats itself: where no name comes again, the end of a step shows by nothing else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

namespace ddp::named {

class Period {
 public:
  /// @return after how many items they have repeated themselves @p repetitions times, if @p item continues that, the
  /// shortest of such; 0: none
  std::size_t add(std::size_t item, int repetitions) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      runs_[i] = items_[i] == item ? runs_[i] + 1 : 0;
      const std::size_t enough = std::max(i + 1, kShortest) * static_cast<std::size_t>(repetitions);
      if (found == 0 && runs_[i] > enough) found = i + 1;
    }
    items_.push_front(item);
    if (items_.size() > kLongest) items_.pop_back();
    return found;
  }
  void clear() {
    items_.clear();
    runs_.assign(kLongest, 0);
  }

 private:
  static constexpr std::size_t kLongest = 1'000;
  static constexpr std::size_t kShortest = 16;  // items: a few equal ones within a step are no step

  std::deque<std::size_t> items_{};  ///< the newest first
  std::vector<std::size_t> runs_ =
      std::vector<std::size_t>(kLongest, 0);  ///< [i]: newest that equal those i + 1 before
};

}  // namespace ddp::named
