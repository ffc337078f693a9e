// One collective under way: how far its segments have come through the stages of its plan.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include <ddp/deadline.hpp>

#include "collectives/hierarchy/plan.hpp"

namespace ddp::collectives::hierarchy {

/// Used again and again: keeps its temporary memory, at most 6 segments (or two elements a rank, if that is more).
class Task {
 public:
  /// May throw std::bad_alloc.
  void begin(const Layout& layout, const Operation& operation, Deadline deadline, std::size_t segment_bytes);

  const Job& job() const { return job_; }
  Deadline deadline() const { return deadline_; }

  /// The stage of @p lane whose next segment is its turn; none when all are posted.
  std::optional<std::size_t> next(Lane lane) const;
  /// Whether what a stage's next segment needs is there.
  bool ready(std::size_t stage) const;
  bool unposted(std::size_t stage) const { return posted_[stage] < job_.segments(); }
  /// @return the segment.
  std::size_t posted(std::size_t stage) { return posted_[stage]++; }
  /// Segments of a stage end in order.
  void ended(std::size_t stage) { ++ended_[stage]; }
  bool over() const;

 private:
  Job job_;
  Deadline deadline_{Deadline::Clock::time_point{}};
  std::array<std::size_t, Job::kMostStages> posted_{};
  std::array<std::size_t, Job::kMostStages> ended_{};
  std::unique_ptr<std::byte[]> temporary_;
  std::size_t temporary_bytes_ = 0;
};

}  // namespace ddp::collectives::hierarchy
