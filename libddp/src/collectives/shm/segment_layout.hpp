// Layout of the memory that the ranks of a group share: a page for all ranks, then one region per rank, which only that
// rank writes (except the readers' positions in its rings).
//
//   | GroupControl | region of rank 0 | region of rank 1 | ...
//   region: RankControl | StepFlag x kFlags | ResultFlag x kSlots | RingControl x ranks | slots | rings
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace ddp::collectives::shm {

/// Two cache lines, since processors prefetch them in pairs.
inline constexpr std::size_t kLine = 128;
inline constexpr std::size_t kPageBytes = 4096;
/// Steps that the segment can hold at the same time, which bounds how far a root may be ahead of waiting ranks. Powers
/// of two, so that step numbers may wrap.
inline constexpr std::uint64_t kFlags = 32;
/// The same for steps whose data do not fit beside their flags.
inline constexpr std::uint64_t kSlots = 4;
inline constexpr int kMaxRanks = 1024;
inline constexpr std::size_t kInlineBytes = 96;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

/// Says that this rank's slot holds a step's data; small data are beside the flag instead.
struct alignas(kLine) StepFlag {
  std::atomic<std::uint64_t> step;  ///< number + 1; written last
  std::uint64_t fingerprint;        ///< of the operation that the step belongs to
  std::uint64_t done;               ///< RankControl::done at that time
  std::uint64_t unused;
  std::array<std::byte, kInlineBytes> data;
};
static_assert(sizeof(StepFlag) == kLine);

/// Says that this rank's slot also holds its part of the step's result.
struct alignas(kLine) ResultFlag {
  std::atomic<std::uint64_t> step;
};

/// A byte queue from the region's rank to another rank. Positions count bytes and wrap.
struct RingControl {
  alignas(kLine) std::atomic<std::uint64_t> head;  ///< written by the region's rank
  alignas(kLine) std::atomic<std::uint64_t> tail;  ///< written by the reader
  std::atomic<std::uint64_t> taken;                ///< by the reader: bytes of eager messages that matched a receive
};

enum class FailureCause : std::uint32_t {
  none,
  death,
  mismatch,
  message,  ///< a message that its author received from the other rank does not fit
};
enum class RankState : std::uint32_t {
  absent,
  ready,
  closed,    ///< without need: a rank that waits for this one waits in vain
  resigned,  ///< after a failure or an abort that this rank did not cause
};

struct RankControl {
  alignas(kLine) std::atomic<std::uint64_t> done;  ///< steps that this rank has finished reading
  std::atomic<std::uint64_t> changes;              ///< counts this rank's changes that others wait for
  alignas(kLine) std::atomic<RankState> state;
  std::uint64_t process;  ///< identifies the process, before state is ready
  /// Where the process keeps that number, for PeerMemory.
  std::uint64_t process_at;
  /// Set before the memory of messages that this rank has announced can be used for something else.
  std::atomic<std::uint32_t> withdrawn;
  // The same for /proc: base::ProcessNumber.
  std::int64_t pid;
  std::uint64_t pid_space;
  // This rank's finding, written before GroupControl::verdict names the rank.
  FailureCause cause;
  std::array<std::uint64_t, kMaxRanks / 64> ranks;
};

struct GroupControl {
  std::array<std::byte, 16> proof;  ///< of the leader's address
  /// 0, or 1 + the rank whose verdict ends the group.
  alignas(kLine) std::atomic<std::uint32_t> verdict;
  alignas(kLine) std::atomic<std::uint32_t> sleepers;  ///< whether ranks may sleep, and for what: see Doorbell
  alignas(kLine) std::atomic<std::uint32_t> bell;      ///< the futex
};
static_assert(sizeof(GroupControl) <= kPageBytes);

/// Offsets for a number of ranks and a region size.
class SegmentLayout {
 public:
  /// @p region_bytes: multiple of kPageBytes, at least smallest_region(ranks).
  SegmentLayout(int ranks, std::size_t region_bytes);

  static std::size_t smallest_region(int ranks);

  int ranks() const { return ranks_; }
  std::size_t region_bytes() const { return region_bytes_; }
  std::size_t total_bytes() const { return region(ranks_); }
  std::size_t slot_bytes() const { return slot_bytes_; }  ///< multiple of 64
  std::size_t ring_bytes() const { return ring_bytes_; }  ///< power of two

  std::size_t region(int rank) const { return kPageBytes + static_cast<std::size_t>(rank) * region_bytes_; }
  std::size_t step_flag(int rank, std::uint64_t step) const {
    return region(rank) + sizeof(RankControl) + step % kFlags * sizeof(StepFlag);
  }
  std::size_t result_flag(int rank, std::uint64_t step) const {
    return region(rank) + sizeof(RankControl) + kFlags * sizeof(StepFlag) + step % kSlots * sizeof(ResultFlag);
  }
  std::size_t ring_control(int from, int to) const {
    return region(from) + sizeof(RankControl) + kFlags * sizeof(StepFlag) + kSlots * sizeof(ResultFlag) +
           static_cast<std::size_t>(to) * sizeof(RingControl);
  }
  std::size_t slot(int rank, std::uint64_t step) const {
    return region(rank) + control_bytes(ranks_) + static_cast<std::size_t>(step % kSlots) * slot_bytes_;
  }
  std::size_t ring(int from, int to) const {
    return slot(from, 0) + kSlots * slot_bytes_ + static_cast<std::size_t>(to) * ring_bytes_;
  }

 private:
  static std::size_t control_bytes(int ranks);

  int ranks_;
  std::size_t region_bytes_;
  std::size_t slot_bytes_;
  std::size_t ring_bytes_;
};

/// The segment as one rank sees it mapped.
class SegmentView {
 public:
  SegmentView(std::byte* base, const SegmentLayout& layout) : base_(base), layout_(layout) {}
  const SegmentLayout& layout() const { return layout_; }
  GroupControl& group() const { return at<GroupControl>(0); }
  RankControl& control(int rank) const { return at<RankControl>(layout_.region(rank)); }
  StepFlag& step_flag(int rank, std::uint64_t step) const { return at<StepFlag>(layout_.step_flag(rank, step)); }
  ResultFlag& result_flag(int rank, std::uint64_t step) const {
    return at<ResultFlag>(layout_.result_flag(rank, step));
  }
  RingControl& ring_control(int from, int to) const { return at<RingControl>(layout_.ring_control(from, to)); }
  std::byte* slot(int rank, std::uint64_t step) const { return base_ + layout_.slot(rank, step); }
  std::byte* ring(int from, int to) const { return base_ + layout_.ring(from, to); }

 private:
  template <class T>
  T& at(std::size_t offset) const {
    return *reinterpret_cast<T*>(base_ + offset);  // a new file holds zeros, which are valid values of all of them
  }
  std::byte* base_;
  SegmentLayout layout_;
};

// ---- The shared memory that this process may still use, over all its groups.

/// The most that a rank may use: DDP_SHM_MIB, default 8 MiB. Throws Error unless the value is a number.
std::size_t budget_bytes();

/// The unused part of the budget.
std::size_t budget_left();

/// The region size of the next group, from what all its ranks have left: an eighth of that, so that the first groups
/// get the most and many groups get some; at most 1 MiB. 0 if not even the smallest region fits.
std::size_t choose_region_bytes(std::size_t left, int ranks);

/// A group's share of the budget.
class BudgetShare {
 public:
  BudgetShare() = default;
  explicit BudgetShare(std::size_t bytes);
  BudgetShare(BudgetShare&& other) noexcept : bytes_(std::exchange(other.bytes_, 0)) {}
  BudgetShare& operator=(BudgetShare&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;
  ~BudgetShare();

 private:
  std::size_t bytes_ = 0;
};

// ---- Copies between tensors and shared memory.

/// memcpy, in pieces on processors that copy long strings badly: from 2112 bytes on, glibc uses `rep movsb` if the
/// processor reports it as fast (FSRM). On AMD's Zen 3 that moves 2 instead of 40 GB/s when the target's offset in its
/// page is a few bytes beyond the source's, as with slots and tensors, which malloc puts 16 bytes after the start of a
/// page.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t kPiece = 2048;
  constexpr std::uintptr_t kPage = 4096;
  constexpr std::uintptr_t kNear = 64;
  const std::uintptr_t ahead = (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % kPage;
  const std::size_t most = ahead == 0 || ahead >= kNear ? bytes : kPiece;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(most, bytes - done);
    std::memcpy(static_cast<std::byte*>(to) + done, static_cast<const std::byte*>(from) + done, piece);
    done += piece;
  }
}

// ---- Places where tests stop or kill a rank.

enum class Phase : std::uint8_t {
  connecting,      ///< known to the leader, without the segment
  before_copy,     ///< of its data into its slot
  before_show,     ///< copied, but not announced
  before_reduce,   ///< the others' data have arrived
  in_copy_out,     ///< before results are copied out
  between_stages,  ///< of a hierarchy: an earlier stage of a segment is over, the next one not posted
};

/// Null except in tests, so a call only tests a register.
struct PhaseHook {
  void (*call)(Phase phase, void* context) = nullptr;
  void* context = nullptr;
  void operator()(Phase phase) const {
    if (call != nullptr) [[unlikely]]
      call(phase, context);
  }
};

// ---- Why a group has ended, the same for all its ranks: the finding of the first rank to notice, in shared memory.

struct SharedFailure {
  FailureCause cause = FailureCause::none;
  std::vector<int> ranks{};
  int author = -1;
};

class FailureBoard {
 public:
  FailureBoard(const SegmentView& view, int rank) : view_(view), rank_(rank) {}
  bool has_failure() const noexcept { return view_.group().verdict.load(std::memory_order_acquire) != 0; }
  /// Call once failed.
  SharedFailure read() const {
    const int number = static_cast<int>(view_.group().verdict.load(std::memory_order_acquire)) - 1;
    const RankControl& author = view_.control(number);
    SharedFailure verdict{.cause = author.cause, .author = number};
    for (int rank = 0; rank < view_.layout().ranks(); ++rank) {
      if ((author.ranks[static_cast<std::size_t>(rank) / 64] >> (rank % 64) & 1U) != 0) verdict.ranks.push_back(rank);
    }
    return verdict;
  }
  /// Publishes it unless there is one already. At most once per rank.
  void publish(const SharedFailure& verdict) {
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
