// A backend of two levels: one backend for the ranks that share memory, and one between the leaders of these domains,
// so that bytes cross the slow link once, whatever the placement. Large operations run in segments (see plan.hpp).
//
// Bits: every element is combined within its domain, then over the domains, in rank order and whatever the size.
// Memory: an operation needs at most six segments of temporary memory (3 MiB), or six elements for each rank of the
// group if that is more; all_reduce, reduce and broadcast need none. It is kept for the next ones.
// Messages: to ranks of the own domain over the inner backend, to others over the flat one; tag kOwnTag (2^32 - 1) is
// the hierarchy's own.
// Failures: when an operation of a part fails, this rank completes what needs nothing more of others, and then ends all
// of its parts, so that the other ranks of both see it; not at a deadline, which the others have, too. The first
// failure is that of all operations.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ddp/backend.hpp>

#include "collectives/hierarchy/part.hpp"
#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::hierarchy {

/// Small enough that the parts work on several segments of a bucket of gradients (25 MiB) at a time.
inline constexpr std::size_t kSegmentBytes = std::size_t{512} << 10U;

/// Connected backends; ranks in them are positions in the lists.
struct Parts {
  std::unique_ptr<Backend> inner;  ///< of the domain's members; null where it has one
  std::unique_ptr<Backend> outer;  ///< of the leaders; null elsewhere, and if there is one domain
  std::unique_ptr<Backend> flat;   ///< of all ranks, for messages; null if there is one domain
  /// Ends all that outer and flat do, and tells the other domains why; then the two must fail together. Without it they
  /// are aborted.
  std::function<void(const Failure&)> tell_domains;
  shm::PhaseHook hook{};
};

class HierarchicalBackend final : public Backend {
 public:
  /// @param segment_bytes the same on all ranks.
  HierarchicalBackend(Layout layout, Parts parts, std::size_t segment_bytes = kSegmentBytes);
  HierarchicalBackend& operator=(HierarchicalBackend&&) = delete;
  ~HierarchicalBackend() override;

  const BackendTraits& traits() const noexcept override { return traits_; }
  /// Its parts are connected already.
  Bytes address() const override { return {}; }
  void connect(const std::vector<Bytes>& addresses, Deadline deadline) override;
  Request& init(std::span<const Operation> operations, Deadline deadline) override;
  void abort() noexcept override;
  void close(Deadline deadline) noexcept override;
  void rest(std::chrono::microseconds limit) noexcept override;

 private:
  class Collectives;
  class Messages;

  /// Takes everything as far as it goes now.
  void progress() noexcept;
  void advance();
  bool poll_parts();
  bool post_steps(Task::Scope scope);
  /// Whether a stage may start now, as far as other steps are concerned.
  bool has_room(const Stage& stage) const;
  bool run_local_step();
  /// The ranks that a part waited for when a step of @p task timed out, without those that waited for others
  /// themselves.
  std::vector<int> absent(Lane lane, const Task& task, const std::vector<int>& ranks) const;
  /// Notes the first failure; advance() brings about the end.
  void note(Outcome outcome, Failure failure, Lane where);
  /// @param where the part that has failed.
  void fail(Outcome outcome, Failure failure, std::optional<Lane> where = {});
  void end_parts(std::optional<Lane> where);
  bool failed() const { return outcome_ != Outcome::running; }
  /// For a task after progress().
  Outcome outcome_of(const Task& task) const;
  void drop(Task& task);
  Part& part(Lane lane) { return parts_[static_cast<std::size_t>(lane)]; }
  const Part& part(Lane lane) const { return parts_[static_cast<std::size_t>(lane)]; }

  const Layout layout_;
  const std::size_t segment_bytes_;
  std::array<Part, kParts> parts_;
  const std::function<void(const Failure&)> tell_domains_;
  const shm::PhaseHook hook_;
  BackendTraits traits_;
  std::vector<Task*> tasks_;  ///< posted and not over, in issue order
  struct Trouble {
    Outcome outcome;
    Failure failure;
    Lane where;
  };
  std::optional<Trouble> trouble_;      ///< while what can be completed is
  Outcome outcome_ = Outcome::running;  ///< the first failure
  Failure failure_;
  std::atomic<bool> aborted_{false};
  std::vector<std::unique_ptr<Collectives>> collectives_;
  std::vector<std::unique_ptr<Messages>> messages_;
};

// ---- What a hierarchical backend lends its group: started collectives, and sends and receives.

/// Collectives that start as one: their tasks follow one another.
class HierarchicalBackend::Collectives final : public Request {
 public:
  explicit Collectives(HierarchicalBackend& backend) : backend_(backend) {}

  Request& begin(std::span<const Operation> operations, Deadline deadline);
  bool idle() const { return !used_; }

  void post() noexcept override;
  Outcome poll() noexcept override;
  Failure failure() const override { return backend_.failure_; }
  void release() noexcept override;

 private:
  HierarchicalBackend& backend_;
  std::vector<std::unique_ptr<Task>> tasks_;  ///< the first count_ are used
  std::size_t count_ = 0;
  bool used_ = false;
};

/// Sends and receives that start as one: some by the inner part, some by the flat one.
class HierarchicalBackend::Messages final : public Request {
 public:
  explicit Messages(HierarchicalBackend& backend) : backend_(backend) {}

  Request& begin(std::span<const Operation> operations, Deadline deadline);
  bool idle() const { return !used_; }

  void post() noexcept override;
  Outcome poll() noexcept override;
  Failure failure() const override;
  bool waits(std::size_t operation) const noexcept override;
  void release() noexcept override;
  /// Lets the parts see what has come, before they are ended.
  void look() noexcept;

 private:
  struct Share {
    Lane lane;
    std::vector<Operation> operations{};  ///< with ranks of the part
    Request* request = nullptr;           ///< null: none, or over
    std::vector<bool> late{};             ///< by operation: whether it waited when the time ran out
  };
  void end(Share& share);

  HierarchicalBackend& backend_;
  std::array<Share, 2> shares_{Share{.lane = Lane::inner}, Share{.lane = Lane::flat}};
  /// For each operation: its share, and where in that.
  std::vector<std::pair<std::size_t, std::size_t>> places_;
  bool refused_ = false;  ///< the program uses the hierarchy's own tag
  bool broken_ = false;   ///< a share has failed
  bool used_ = false;
};

/// One of @p requests that is not lent, or a new one.
template <class Each>
Each& take_idle(std::vector<std::unique_ptr<Each>>& requests, HierarchicalBackend& backend) {
  for (const auto& each : requests) {
    if (each->idle()) return *each;
  }
  return *requests.emplace_back(std::make_unique<Each>(backend));
}

}  // namespace ddp::collectives::hierarchy
