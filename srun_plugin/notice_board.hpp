// Memory that the tasks of a node share between fork and exec, so that one of them looks at the machine for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

namespace ddp::srun_plugin {

/// Made by slurmstepd before it forks the tasks; each task has the same pages then. They are gone with the last process
/// that has them: no file, no name. Every wait has a deadline, so that a task that dies on the way holds up nobody.
class NoticeBoard {
 public:
  /// What a task may post, and what all may be answered.
  static constexpr std::size_t kOfferBytes = 8 * 1024;
  static constexpr std::size_t kAnswerBytesPerTask = 16 * 1024;

  /// @param tasks on this node. Throws Error(system) when there is no memory.
  explicit NoticeBoard(std::uint32_t tasks);
  NoticeBoard(const NoticeBoard&) = delete;
  NoticeBoard& operator=(const NoticeBoard&) = delete;
  ~NoticeBoard();

  std::uint32_t tasks() const { return tasks_; }

  /// Posts what @p task has to say, once. What is too long is posted as nothing.
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
