// How a collective runs over the parts of a hierarchical backend: it is cut into segments, and each passes through the
// stages of the plan. While the leaders exchange one segment, their nodes work on the next and on the one before.
//
// Order: steps in the domain, and those between domains, start sorted by (segment + lag, stage). Ranks have the same
// lags for what they run together, so this order is the same on all of them, whatever the timing: a part needs no more
// than one collective at a time. Since every step also waits for smaller segment + lag only, no circle of waiting can
// arise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ddp/operation.hpp>

namespace ddp::collectives::hierarchy {

// ---- Which ranks of a group share memory. A domain is a node, or a part of one; its lowest rank leads it. Domains are
// numbered by their leaders. Ranks of a domain need not be consecutive, nor domains be of one size.

class Layout {
 public:
  /// @param labels of all ranks: equal for those in one domain.
  Layout(int rank, std::span<const int> labels);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(domain_of_.size()); }
  int domains() const noexcept { return static_cast<int>(members_.size()); }
  int domain_of(int rank) const { return domain_of_[static_cast<std::size_t>(rank)]; }
  /// Position of a rank in its domain.
  int index_of(int rank) const { return index_of_[static_cast<std::size_t>(rank)]; }
  /// Ascending.
  const std::vector<int>& members(int domain) const { return members_[static_cast<std::size_t>(domain)]; }
  int leader(int domain) const { return members(domain).front(); }
  std::size_t members_of(int domain) const { return members(domain).size(); }
  /// For the largest domain.
  std::size_t most_members() const noexcept { return most_members_; }

  // This rank's.
  int domain() const { return domain_of(rank_); }
  int index() const { return index_of(rank_); }
  std::size_t neighbours() const { return members_of(domain()); }  ///< with itself
  bool leads() const { return index() == 0; }

 private:
  int rank_;
  std::vector<int> domain_of_;
  std::vector<int> index_of_;
  std::vector<std::vector<int>> members_;
  std::size_t most_members_ = 0;
};

/// Where a stage runs: in a part, or on this rank alone.
enum class Lane : std::uint8_t { inner, outer, flat, local };
inline constexpr std::size_t kParts = 3;

/// Tag of the hierarchy's own messages among the program's.
inline constexpr std::uint32_t kOwnTag = 0xFFFF'FFFF;

/// Segments that have temporary memory at a time: as many as a stage with the largest lag (2) is behind, and one.
inline constexpr std::size_t kSlots = 3;

class Job;

/// For a part: appends the operations to run; none where this rank has nothing to do. Locally: does it.
using Step = void (*)(const Job& job, std::size_t segment, std::vector<Operation>& operations);

struct Stage {
  Lane lane = Lane::local;
  std::uint8_t lag = 0;    ///< in segments
  std::uint8_t needs = 0;  ///< bits of the stages that must be over for the same segment
  bool messages = false;   ///< sends and receives, of which a part can have any number under way
  Step step = nullptr;
};

/// Elements of one rank's part.
struct Slice {
  std::size_t first;
  std::size_t count;
};

/// One collective and its plan.
class Job {
 public:
  static constexpr std::size_t kMostStages = 6;

  /// @param segment_bytes the same on all ranks.
  void plan(const Layout& layout, const Operation& operation, std::size_t segment_bytes);
  /// @param temporary kSlots times slot_bytes().
  void give(std::byte* temporary) { temporary_ = temporary; }
  const Layout& layout() const { return *layout_; }
  const Operation& operation() const { return *operation_; }
  std::size_t stages() const { return stage_count_; }
  const Stage& stage(std::size_t index) const { return stages_[index]; }
  std::size_t segments() const { return segments_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  /// The sequence number of the parts' collectives: made of all that ranks must agree on, so that parts whose ranks
  /// agree on their own step notice when they disagree on the whole, for example on its root.
  std::uint64_t mark() const { return mark_; }
  std::size_t element_bytes() const { return element_bytes_; }
  /// What a segment holds of a part of @p total elements.
  Slice slice(std::size_t segment, std::size_t total) const;
  /// Elements that a rank contributes to an all_gather_v or to another collective.
  std::size_t part_of(int rank) const;
  std::byte* input(std::size_t element) const { return at(operation_->input.data(), element); }
  std::byte* output(std::size_t element) const { return at(operation_->output.data(), element); }
  /// Temporary memory of a segment: where it starts, and behind the first @p elements of it.
  std::byte* temporary(std::size_t segment, std::size_t elements = 0) const;
  /// Elements of one rank's part in a full segment: unit of what lies in temporary memory.
  std::size_t length() const { return length_; }

  /// avg and prescale: narrow types are divided before the sum, so that it cannot overflow; the rest after it, which is
  /// more exact.
  bool divides_before() const;
  bool divides_after() const;
  double divisor() const;

  // For the plans.
  /// Cuts parts of at most @p part elements; @p copies: that many slices of a segment make segment_bytes.
  void cut(std::size_t part, std::size_t copies, std::size_t segment_bytes);
  void reserve(std::size_t slices) { slot_bytes_ = (slices * length_ * element_bytes_ + 63) / 64 * 64; }
  /// @return its bit.
  std::uint8_t add(Lane lane, int lag, unsigned needs, Step step, bool messages = false);

  // Makers of the parts' operations.
  Operation collective(OperationKind kind, std::size_t count, int root = -1) const;
  Operation in_place(OperationKind kind, std::byte* values, std::size_t count, int root = -1) const;
  Operation transfer(OperationKind kind, std::byte* values, std::size_t count, int peer, std::uint32_t tag) const;
  TensorView view(std::byte* values, std::size_t count) const;

 private:
  std::byte* at(void* base, std::size_t element) const {
    return static_cast<std::byte*>(base) + element * element_bytes_;
  }

  const Layout* layout_ = nullptr;
  const Operation* operation_ = nullptr;
  std::uint64_t mark_ = 0;
  std::size_t element_bytes_ = 1;
  std::size_t length_ = 1;
  std::size_t segments_ = 1;
  std::size_t slot_bytes_ = 0;
  std::byte* temporary_ = nullptr;
  std::array<Stage, kMostStages> stages_{};
  std::size_t stage_count_ = 0;
};

// One for each kind of operation.
void plan_all_reduce(Job& job, std::size_t segment_bytes);
void plan_reduce(Job& job, std::size_t segment_bytes);
void plan_reduce_scatter(Job& job, std::size_t segment_bytes);
void plan_broadcast(Job& job, std::size_t segment_bytes);
void plan_all_gather(Job& job, std::size_t segment_bytes);
void plan_gather(Job& job, std::size_t segment_bytes);
void plan_scatter(Job& job, std::size_t segment_bytes);
void plan_all_to_all(Job& job, std::size_t segment_bytes);
void plan_barrier(Job& job);

}  // namespace ddp::collectives::hierarchy
