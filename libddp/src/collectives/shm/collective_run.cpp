#include "collectives/shm/collective_run.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace ddp::collectives::shm {
namespace {

/// Up to this size, every rank combines all values itself: one exchange instead of two.
constexpr std::size_t kOneShotBytes = 8 * 1024;
/// Larger tensors are cut into at least four blocks of at least this size, so that copying and combining overlap.
constexpr std::size_t kSmallestBlock = 16 * 1024;
/// Copied or combined in one call of advance: about 50 us.
constexpr std::size_t kWorkBytes = 512 * 1024;

bool is_whole_reduction(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce;
}
bool reduces(OperationKind kind) { return is_whole_reduction(kind) || kind == OperationKind::reduce_scatter; }

}  // namespace

CollectiveRun::CollectiveRun(StepBoard& board, std::uint64_t first_step, PhaseHook hook)
    : board_(board), hook_(hook), first_step_(first_step) {
  sources_.resize(static_cast<std::size_t>(board.ranks()));
}

void CollectiveRun::start(const Operation& operation) {
  operation_ = &operation;
  fingerprint_ = operation.fingerprint();
  width_ = size_of(operation.dtype);
  shown_ = reduced_ = finished_ = 0;
  arrived_ = results_arrived_ = 0;
  mismatch_ = waits_for_room_ = false;
  if (reduces(operation.kind)) reduction_ = Reduction(operation, board_.ranks());
  plan();
}

void CollectiveRun::plan() {
  const auto ranks = static_cast<std::size_t>(board_.ranks());
  const std::size_t slot = board_.slot_bytes();
  std::size_t longest = 0;
  for (int rank = 0; rank < (operation_->counts.empty() ? 1 : board_.ranks()); ++rank) {
    longest = std::max(longest, part_elements(rank));
  }
  const std::size_t bytes = longest * width_;
  shape_ = Shape::exchange;
  std::size_t block_bytes = slot;
  if (is_whole_reduction(operation_->kind)) {
    shape_ = bytes <= std::min(kOneShotBytes, slot) ? Shape::one_shot : Shape::two_phase;
  } else if (is(OperationKind::scatter) || is(OperationKind::all_to_all) || is(OperationKind::reduce_scatter)) {
    block_bytes = slot / ranks;  // a slot has a piece for each rank
  }
  const std::size_t quarter = std::max(bytes / 4, kSmallestBlock / (block_bytes == slot ? 1 : ranks));
  block_elements_ = std::max<std::size_t>(std::min(block_bytes, quarter) / 64 * 64, 64) / width_;
  blocks_ = std::max<std::uint64_t>(1, (longest + block_elements_ - 1) / block_elements_);
}

std::size_t CollectiveRun::part_elements(int rank) const {
  switch (operation_->kind) {
    case OperationKind::barrier: return 0;
    case OperationKind::all_gather_v: return operation_->counts[static_cast<std::size_t>(rank)];
    case OperationKind::all_to_all: return operation_->count / static_cast<std::size_t>(board_.ranks());
    default: return operation_->count;
  }
}

std::size_t CollectiveRun::part_offset(int rank) const {
  if (!is(OperationKind::all_gather_v)) return static_cast<std::size_t>(rank) * part_elements(rank);
  return std::accumulate(operation_->counts.begin(), operation_->counts.begin() + rank, std::size_t{0});
}

CollectiveRun::Range CollectiveRun::block_of(std::size_t elements, std::uint64_t block) const {
  const std::size_t first = std::min<std::size_t>(block * block_elements_, elements);
  return {first, std::min(block_elements_, elements - first)};
}

/// The share of a block that @p rank combines: whole cache lines.
CollectiveRun::Range CollectiveRun::slice_of(std::size_t elements, int rank) const {
  const auto ranks = static_cast<std::size_t>(board_.ranks());
  const std::size_t line = 64 / width_;
  const std::size_t share = ((elements + ranks - 1) / ranks + line - 1) / line * line;
  const std::size_t first = std::min(static_cast<std::size_t>(rank) * share, elements);
  return {first, std::min(share, elements - first)};
}

std::size_t CollectiveRun::shown_elements(int rank, std::uint64_t block) const {
  const std::size_t count = block_of(part_elements(rank), block).count;
  switch (operation_->kind) {
    case OperationKind::barrier: return 0;
    case OperationKind::broadcast: return is_root(rank) ? count : 0;
    case OperationKind::gather: return is_root(rank) ? 0 : count;
    case OperationKind::scatter: return is_root(rank) ? count * static_cast<std::size_t>(board_.ranks()) : 0;
    case OperationKind::all_to_all:
    case OperationKind::reduce_scatter: return count * static_cast<std::size_t>(board_.ranks());
    default: return count;
  }
}

/// Every rank shows the first block, if only to show which operation it has called.
bool CollectiveRun::shows(int rank, std::uint64_t block) const {
  return block == 0 || shown_elements(rank, block) != 0;
}

bool CollectiveRun::reads(int rank) const {
  switch (operation_->kind) {
    case OperationKind::broadcast:
    case OperationKind::scatter: return is_root(rank);
    case OperationKind::gather: return is_root();
    case OperationKind::reduce: return is_root() || shape_ == Shape::two_phase;
    default: return true;
  }
}

CollectiveRun::State CollectiveRun::advance() {
  work_bytes_ = 0;
  for (bool any = false;; any = true) {
    bool moved = false;
    if (shown_ < blocks_ && shown_ - finished_ < kSlots) moved = show_block();
    if (shape_ == Shape::two_phase && reduced_ < shown_ && reduce_block()) moved = true;
    if (finished_ < (shape_ == Shape::two_phase ? reduced_ : shown_) && finish_block()) moved = true;
    if (mismatch_) return State::mismatch;
    if (finished_ == blocks_) {
      first_step_ += blocks_;
      return State::complete;
    }
    if (!moved) return any ? State::moving : State::waiting;
    if (work_bytes_ > kWorkBytes) return State::moving;
  }
}

bool CollectiveRun::show_block() {
  if (shows(board_.rank(), shown_)) {
    const std::uint64_t step = step_of(shown_);
    waits_for_room_ = !board_.place_is_free(step, shown_bytes(board_.rank(), shown_));
    if (waits_for_room_) return false;
    hook_(Phase::before_copy);
    copy_in(shown_);
    hook_(Phase::before_show);
    board_.show(step, fingerprint_);
  }
  ++shown_;
  return true;
}

void CollectiveRun::copy_in(std::uint64_t block) {
  const int own = board_.rank();
  if (shown_elements(own, block) == 0) return;
  std::byte* const to = shown_data(own, block);
  const std::size_t part = part_elements(own);
  const Range range = block_of(part, block);
  switch (operation_->kind) {
    case OperationKind::scatter:
    case OperationKind::all_to_all:
    case OperationKind::reduce_scatter:
      for (int rank = 0; rank < board_.ranks(); ++rank) {
        if (rank == own) continue;
        const auto index = static_cast<std::size_t>(rank);
        copy(to + index * range.count * width_, at(operation_->input, index * part + range.first), range.count);
      }
      return;
    default: break;
  }
  const std::byte* const from = at(operation_->input, range.first);
  if (shape_ != Shape::two_phase) return copy(to, from, range.count);
  const Range slice = slice_of(range.count, own);  // only this rank reads it
  const std::size_t end = slice.first + slice.count;
  copy(to, from, slice.first);
  copy(to + end * width_, from + end * width_, range.count - end);
}

bool CollectiveRun::others_shown(std::uint64_t block) {
  for (; arrived_ < board_.ranks(); ++arrived_) {
    const int rank = arrived_;
    if (rank == board_.rank() || !reads(rank) || !shows(rank, block)) continue;
    if (!board_.shown(rank, step_of(block))) return false;
    if (board_.fingerprint(rank, step_of(block)) != fingerprint_) {
      mismatch_ = true;
      return false;
    }
  }
  arrived_ = 0;
  return true;
}

bool CollectiveRun::others_have_results(std::uint64_t block) {
  if (!gets_result()) return true;
  for (; results_arrived_ < board_.ranks(); ++results_arrived_) {
    if (results_arrived_ == board_.rank()) continue;
    if (!board_.result_shown(results_arrived_, step_of(block))) return false;
  }
  results_arrived_ = 0;
  return true;
}

/// @param offset where this rank's elements begin in the others' data
void CollectiveRun::combine(std::byte* out, std::uint64_t block, std::size_t offset, const std::byte* own,
                            std::size_t count) {
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    sources_[static_cast<std::size_t>(rank)] = rank == board_.rank() ? own : shown_data(rank, block) + offset * width_;
  }
  reduction_.combine(out, sources_, count);
  work_bytes_ += count * width_ * sources_.size();
}

bool CollectiveRun::reduce_block() {
  if (!others_shown(reduced_)) return false;
  hook_(Phase::before_reduce);
  const Range range = block_of(operation_->count, reduced_);
  const Range slice = slice_of(range.count, board_.rank());
  combine(shown_data(board_.rank(), reduced_) + slice.first * width_, reduced_, slice.first,
          at(operation_->input, range.first + slice.first), slice.count);
  board_.show_result(step_of(reduced_));
  ++reduced_;
  return true;
}

bool CollectiveRun::finish_block() {
  if (shape_ == Shape::two_phase ? !others_have_results(finished_) : !others_shown(finished_)) return false;
  hook_(Phase::in_copy_out);
  copy_out(finished_);
  board_.leave(step_of(finished_));
  ++finished_;
  return true;
}

void CollectiveRun::copy_out(std::uint64_t block) {
  const int own = board_.rank();
  const auto index = static_cast<std::size_t>(own);
  const TensorView& in = operation_->input;
  const TensorView& out = operation_->output;
  const std::size_t part = part_elements(own);
  const Range range = block_of(part, block);
  switch (operation_->kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce:
      if (!gets_result()) return;
      if (shape_ == Shape::one_shot) return combine(at(out, 0), block, 0, at(in, 0), range.count);
      for (int rank = 0; rank < board_.ranks(); ++rank) {
        const Range slice = slice_of(range.count, rank);
        copy(at(out, range.first + slice.first), shown_data(rank, block) + slice.first * width_, slice.count);
      }
      return;
    case OperationKind::broadcast:
      return copy(at(out, range.first), is_root() ? at(in, range.first) : shown_data(operation_->root, block),
                  range.count);
    case OperationKind::gather:
      if (!is_root()) return;
      [[fallthrough]];
    case OperationKind::all_gather:
    case OperationKind::all_gather_v:
      for (int rank = 0; rank < board_.ranks(); ++rank) {
        const Range theirs = block_of(part_elements(rank), block);
        copy(at(out, part_offset(rank) + theirs.first), rank == own ? at(in, theirs.first) : shown_data(rank, block),
             theirs.count);
      }
      return;
    case OperationKind::scatter:
      return copy(at(out, range.first),
                  is_root() ? at(in, index * part + range.first)
                            : shown_data(operation_->root, block) + index * range.count * width_,
                  range.count);
    case OperationKind::all_to_all:
      for (int rank = 0; rank < board_.ranks(); ++rank) {
        copy(at(out, static_cast<std::size_t>(rank) * part + range.first),
             rank == own ? at(in, index * part + range.first) : shown_data(rank, block) + index * range.count * width_,
             range.count);
      }
      return;
    case OperationKind::reduce_scatter:
      return combine(at(out, range.first), block, index * range.count, at(in, index * part + range.first), range.count);
    case OperationKind::barrier:
    case OperationKind::send:
    case OperationKind::recv: return;
  }
}

void CollectiveRun::copy(std::byte* to, const std::byte* from, std::size_t elements) {
  if (elements == 0 || to == from) return;
  copy_bytes(to, from, elements * width_);
  work_bytes_ += elements * width_;
}

std::vector<int> CollectiveRun::waits_for() const {
  std::vector<int> ranks;
  const std::uint64_t block = shape_ == Shape::two_phase ? reduced_ : finished_;
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    if (rank == board_.rank()) continue;
    const bool keeps_place = shown_ < blocks_ && shows(board_.rank(), shown_) && shown_ - finished_ < kSlots &&
                             !board_.left(rank, StepBoard::former(step_of(shown_), shown_bytes(board_.rank(), shown_)));
    const bool owes_data = block < shown_ && reads(rank) && shows(rank, block) && !board_.shown(rank, step_of(block));
    const bool owes_result = shape_ == Shape::two_phase && gets_result() && finished_ < reduced_ &&
                             !board_.result_shown(rank, step_of(finished_));
    if (keeps_place || owes_data || owes_result) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> CollectiveRun::differing(bool enough) const {
  const std::uint64_t step = step_of(shape_ == Shape::two_phase ? reduced_ : finished_);
  std::vector<std::pair<int, std::uint64_t>> called;
  std::map<std::uint64_t, int> votes;
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    if (rank != board_.rank() && !board_.shown(rank, step)) {
      if (enough) continue;
      return {};
    }
    called.emplace_back(rank, rank == board_.rank() ? fingerprint_ : board_.fingerprint(rank, step));
    ++votes[called.back().second];
  }
  std::uint64_t usual = called.front().second;
  for (const auto& [rank, call] : called) {
    if (votes[call] > votes[usual]) usual = call;
  }
  std::vector<int> ranks;
  for (const auto& [rank, call] : called) {
    if (call != usual) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace ddp::collectives::shm
