// Investigates operations that take long, come near their deadline or have failed. What must ask other ranks, and so
// takes time, runs on a thread that exists only meanwhile.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <ddp/work.hpp>

#include "collectives/failure_detector.hpp"

namespace ddp::collectives {

class GroupEngine;

/// Thread-safe.
class GroupWatch {
 public:
  using Time = Deadline::Clock::time_point;

  GroupWatch(GroupEngine& group, const OperationLog& log);
  GroupWatch& operator=(GroupWatch&&) = delete;
  ~GroupWatch();

  /// Why the group has failed, once it has.
  std::optional<Error> verdict() const { return detector_->verdict(); }

  /// Something is to be investigated at @p event.
  void expect(Time event) noexcept;
  /// This rank closes the group while operations are under way: the others, who may be in one, learn that it will not
  /// end.
  void report_close() noexcept;
  /// Ends the group for all members with @p error, unless it has failed already.
  void end_group(const Error& error) noexcept;
  /// By the progress thread, again and again: starts an inquiry if there is an incident and none is under way.
  void look(Time now);
  /// Waits for the end of the inquiry, and answers other ranks no more. The group is closing, so it ends soon.
  void stop() noexcept;

 private:
  /// What is to be investigated.
  struct Incident {
    enum class Kind { failure, deadline, probe };
    Kind kind;
    Work work;
    std::optional<Error> failure{};  ///< what its backend said of a failure; none if that its time ran out
    std::size_t operation = 0;       ///< which of several
    std::string times{};             ///< when it was issued and began, of one on a device
  };

  std::optional<Incident> next_incident();
  std::optional<Incident> overdue();
  bool urgent();
  void inquire();
  void investigate(const Incident& incident);
  void note_probe(WorkState& work, bool interrupted);

  GroupEngine& group_;
  std::unique_ptr<FailureDetector> detector_;
  std::atomic<std::int64_t> next_event_;
  std::mutex mutex_;  ///< guards what follows
  bool stopped_ = false;
  std::thread thread_;
  std::atomic<bool> inquiring_{false};
};

}  // namespace ddp::collectives
