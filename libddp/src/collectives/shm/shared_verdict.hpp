// Why a group has ended, the same for all its ranks: what the first that found out has written into the shared memory.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {

struct Verdict {
  VerdictCause cause = VerdictCause::none;
  std::vector<int> ranks{};
  int author = -1;
};

class SharedVerdict {
 public:
  SharedVerdict(const SegmentView& view, int rank) : view_(view), rank_(rank) {}

  bool spoken() const noexcept { return view_.group().verdict.load(std::memory_order_acquire) != 0; }
  /// Once spoken.
  Verdict read() const {
    const int number = static_cast<int>(view_.group().verdict.load(std::memory_order_acquire)) - 1;
    const RankControl& author = view_.control(number);
    Verdict verdict{.cause = author.cause, .author = number};
    for (int rank = 0; rank < view_.layout().ranks(); ++rank) {
      if ((author.ranks[static_cast<std::size_t>(rank) / 64] >> (rank % 64) & 1U) != 0) verdict.ranks.push_back(rank);
    }
    return verdict;
  }
  /// Speaks it, unless there is one. At most once a rank.
  void speak(const Verdict& verdict) {
    RankControl& own = view_.control(rank_);
    own.cause = verdict.cause;
    for (const int rank : verdict.ranks)
      own.ranks[static_cast<std::size_t>(rank) / 64] |= std::uint64_t{1} << (rank % 64);
    std::uint32_t none = 0;
    view_.group().verdict.compare_exchange_strong(none, static_cast<std::uint32_t>(rank_) + 1,
                                                  std::memory_order_seq_cst);
  }

 private:
  SegmentView view_;
  int rank_;
};

}  // namespace ddp::collectives::shm
