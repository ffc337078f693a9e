// What the processes of a node share with each other: memory, in which tasks between fork and exec have one of them
// examine the machine for all (NoticeBoard); and a channel by which slurmstepd says how tasks end (EndChannel).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::srun_plugin {

/// Mapped by slurmstepd before it forks the tasks, without file or name, so it ends with the last process that has it.
/// Every wait has a deadline: a task that dies does not block the others.
class NoticeBoard {
 public:
  /// Limits of an offer, and of the answer.
  static constexpr std::size_t kOfferBytes = 8 * 1024;
  static constexpr std::size_t kAnswerBytesPerTask = 16 * 1024;

  /// @param tasks on this node. Throws Error(system) when there is no memory.
  explicit NoticeBoard(std::uint32_t tasks);
  NoticeBoard& operator=(NoticeBoard&&) = delete;
  ~NoticeBoard();

  std::uint32_t tasks() const { return tasks_; }

  /// Posts the offer of @p task, once; an empty one if @p data is too long.
  void offer(std::uint32_t task, std::span<const std::byte> data);
  /// Waits until all tasks have posted; nothing at the deadline.
  std::optional<std::vector<Bytes>> offers(Deadline deadline) const;

  /// Posts the answer, once. Returns false, having posted an empty one, if it is too long.
  bool answer(std::span<const std::byte> data);
  /// Nothing at the deadline.
  std::optional<Bytes> wait_answer(Deadline deadline) const;

 private:
  struct Header;
  std::byte* offer_slot(std::uint32_t task) const;
  std::byte* answer_area() const;

  std::uint32_t tasks_;
  std::size_t size_bytes_;
  Header* header_;
};

// By which slurmstepd tells the node's witness (ddp-step witness) how each task has ended: only slurmstepd learns that,
// as root, and only the witness, as the user, speaks with the step's store. Tasks tell it that they begin where the
// witness shall watch them.
// Between two processes of one installation on one host: sent as they lie in memory, and told apart by their size.
struct TaskStart {
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  friend bool operator==(const TaskStart&, const TaskStart&) = default;
};
struct TaskEnd {
  std::uint32_t task = 0;     ///< its number in the step, or in its component of a heterogeneous step
  std::int32_t status = 0;    ///< as wait(2) gives it
  std::int64_t when_ms = 0;   ///< since 1970
  std::uint64_t awaited = 0;  ///< 1: slurmstepd waits until it has been passed on, with all before it
  friend bool operator==(const TaskEnd&, const TaskEnd&) = default;
};

/// Slurmstepd's side, and the descriptor that the witness inherits.
class EndChannel {
 public:
  /// How long slurmstepd waits for the witness to pass on a failure or the last task's end, before Slurm ends what is
  /// left on the node, the witness among it. Once in vain, and it waits no more.
  static constexpr std::chrono::milliseconds kPatience{250};

  /// @param tasks on this node. Throws Error(system).
  explicit EndChannel(std::uint32_t tasks);
  EndChannel& operator=(EndChannel&&) = delete;
  ~EndChannel();

  // Slurm with job_container calls hooks in processes that share memory, but not descriptors: there the numbers are
  // others', and these members do nothing.

  /// In a task: for the witness that it starts; its program does not inherit it. -1: there is none.
  int witness_end() const noexcept;
  /// In a task, before its program starts. Lost where the witness is far behind.
  void tell(const TaskStart& start) const noexcept;
  /// In slurmstepd, once all tasks are there. Decides itself whether @p end is awaited.
  void tell(TaskEnd end) noexcept;

 private:
  pid_t owner_;
  base::UniqueFd own_;
  base::UniqueFd witness_;
  std::uint32_t left_;  ///< tasks that have not ended
  bool waits_ = true;
};

using TaskNews = std::variant<std::monostate, TaskStart, TaskEnd>;
/// The witness' side: the next news; none where there is nothing now, or nothing any more (@p ended).
TaskNews take_news(int fd, bool& ended);
/// The awaited TaskEnd has been passed on.
void confirm_end(int fd) noexcept;

}  // namespace ddp::srun_plugin
