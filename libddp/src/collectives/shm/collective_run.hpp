// One collective in progress: cut into blocks that fit into slots, one step of the board each. Up to kSlots blocks are
// on their way at once, so that a rank copies one while others read another.
//
// Every rank shows what others need of a block and reads theirs. Small reductions: everyone combines everyone's
// values. Large ones in two phases: everyone combines its slice of the block, shows the result, copies the others'.
#pragma once

#include <cstdint>
#include <vector>

#include <ddp/operation.hpp>

#include "collectives/reduce_kernels.hpp"
#include "collectives/shm/segment_layout.hpp"
#include "collectives/shm/step_board.hpp"

namespace ddp::collectives::shm {

class CollectiveRun {
 public:
  enum class State : std::uint8_t {
    waiting,   ///< nothing could be done
    moving,    ///< something was done, more may be possible
    complete,  ///< the tensors are not used any more
    mismatch,  ///< another rank has called something else
  };

  CollectiveRun(StepBoard& board, std::uint64_t first_step, PhaseHook hook);

  /// Begins @p operation, which stays valid until its end; the previous one is complete.
  void start(const Operation& operation);
  /// Goes on for some 100 us at most.
  State advance();

  /// Whether it waits for others to leave a step; else for what they show.
  bool waits_for_room() const { return waits_for_room_; }
  /// Ranks without which it cannot go on.
  std::vector<int> waits_for() const;
  /// After a mismatch: the ranks whose call differs from the one that most have called (of equally many, the lowest
  /// rank's); nothing while some have not called at all, unless @p enough.
  std::vector<int> differing(bool enough) const;

 private:
  enum class Shape : std::uint8_t { exchange, one_shot, two_phase };
  /// Elements [first, first + count) of something.
  struct Range {
    std::size_t first;
    std::size_t count;
  };

  void plan();
  bool show_block();
  bool reduce_block();
  bool finish_block();
  void copy_in(std::uint64_t block);
  void copy_out(std::uint64_t block);
  void combine(std::byte* out, std::uint64_t block, std::size_t offset, const std::byte* own, std::size_t count);
  void copy(std::byte* to, const std::byte* from, std::size_t elements);

  bool others_shown(std::uint64_t block);
  bool others_have_results(std::uint64_t block);
  bool is(OperationKind kind) const { return operation_->kind == kind; }
  bool is_root(int rank) const { return operation_->root == rank; }
  bool is_root() const { return is_root(board_.rank()); }
  bool gets_result() const { return !is(OperationKind::reduce) || is_root(); }
  bool reads(int rank) const;
  bool shows(int rank, std::uint64_t block) const;

  std::uint64_t step_of(std::uint64_t block) const { return first_step_ + block; }
  Range block_of(std::size_t elements, std::uint64_t block) const;
  Range slice_of(std::size_t elements, int rank) const;
  std::size_t part_elements(int rank) const;
  std::size_t part_offset(int rank) const;
  std::size_t shown_elements(int rank, std::uint64_t block) const;
  std::size_t shown_bytes(int rank, std::uint64_t block) const { return shown_elements(rank, block) * width_; }
  /// What @p rank shows in the block.
  std::byte* shown_data(int rank, std::uint64_t block) const {
    return board_.data_of(rank, step_of(block), shown_bytes(rank, block));
  }
  std::byte* at(const TensorView& tensor, std::size_t element) const {
    return static_cast<std::byte*>(tensor.data()) + element * width_;
  }

  StepBoard& board_;
  PhaseHook hook_;
  const Operation* operation_ = nullptr;
  std::uint64_t fingerprint_ = 0;
  std::size_t width_ = 1;  ///< bytes of an element
  Shape shape_ = Shape::exchange;
  std::size_t block_elements_ = 0;  ///< of one part
  std::uint64_t blocks_ = 0;
  std::uint64_t first_step_;
  std::uint64_t shown_ = 0;     ///< blocks
  std::uint64_t reduced_ = 0;   ///< blocks
  std::uint64_t finished_ = 0;  ///< blocks
  int arrived_ = 0;             ///< ranks below it have shown the block that is waited for
  int results_arrived_ = 0;     ///< and their results
  bool mismatch_ = false;
  bool waits_for_room_ = false;
  std::size_t work_bytes_ = 0;  ///< of this call of advance
  Reduction reduction_{DType::float32, ReduceOp::sum, 1};
  std::vector<const void*> sources_;
};

}  // namespace ddp::collectives::shm
