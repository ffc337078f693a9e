// One collective under way: how far its segments have come through the stages of its plan.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include <ddp/deadline.hpp>

#include "collectives/hierarchy/plan.hpp"

namespace ddp::collectives::hierarchy {

/// Used again and again: keeps its temporary memory, at most six segments (or six elements a rank, if that is more).
class Task {
 public:
  /// May throw std::bad_alloc.
  void begin(const Layout& layout, const Operation& operation, Deadline deadline, std::size_t segment_bytes);

  const Job& job() const { return job_; }
  Deadline deadline() const { return deadline_; }

  /// Of the stages that run in the domain, or of those that run between domains: the one whose next segment it is the
  /// turn of; none when all are posted.
  enum class Scope : std::uint8_t { domain, between };
  std::optional<std::size_t> next(Scope scope) const;
  /// Whether what a stage's next segment needs is there.
  bool ready(std::size_t stage) const;
  bool unposted(std::size_t stage) const { return posted_[stage] < job_.segments(); }
  /// @return the segment.
  std::size_t posted(std::size_t stage) { return posted_[stage]++; }
  /// Segments of a stage end in order.
  void ended(std::size_t stage) { ++ended_[stage]; }
  bool over() const;
  /// One of its steps has failed: it will not be over, and none of its steps needs to start.
  void give_up() { given_up_ = true; }
  bool given_up() const { return given_up_; }

 private:
  Job job_;
  Deadline deadline_{Deadline::Clock::time_point{}};
  std::array<std::size_t, Job::kMostStages> posted_{};
  std::array<std::size_t, Job::kMostStages> ended_{};
  bool given_up_ = false;
  std::unique_ptr<std::byte[]> temporary_;
  std::size_t temporary_bytes_ = 0;
};

}  // namespace ddp::collectives::hierarchy
