// Memory that the tasks of a node share between fork and exec, so that one of them examines the machine for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

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
  NoticeBoard(const NoticeBoard&) = delete;
  NoticeBoard& operator=(const NoticeBoard&) = delete;
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

}  // namespace ddp::srun_plugin
