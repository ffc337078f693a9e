// A queue of records from one rank to another in shared memory: one writer, one reader. A record is a header and its
// bytes, padded to whole headers.
#pragma once

#include <cstdint>

#include <ddp/tensor_view.hpp>

#include "collectives/shm/copy_bytes.hpp"
#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {

enum class RecordKind : std::uint16_t {
  eager,     ///< a whole message
  announce,  ///< a message that waits until it is asked for
  request,   ///< asks for a message of the reader
  piece,     ///< of a message that was asked for
};

struct RecordHeader {
  RecordKind kind;
  DType dtype{};  ///< of a message
  std::uint32_t tag;
  std::uint64_t fingerprint;
  std::uint64_t bytes;  ///< of the message; of a piece its own
  std::uint64_t id;     ///< of an announced message
};
static_assert(sizeof(RecordHeader) == 32);

class RingWriter {
 public:
  /// @p first: a multiple of a header's size, the same at the reader.
  RingWriter(const SegmentView& view, int from, int to, std::uint64_t first)
      : control_(&view.ring_control(from, to)),
        data_(view.ring(from, to)),
        size_(view.layout().ring_bytes()),
        head_(first),
        tail_(first) {
    control_->head.store(first, std::memory_order_release);
  }

  std::size_t size() const { return size_; }
  /// Bytes of one record for which there is room.
  std::size_t room() noexcept {
    tail_ = control_->tail.load(std::memory_order_acquire);
    const auto free = size_ - static_cast<std::size_t>(head_ - tail_);
    return free < sizeof(RecordHeader) ? 0 : free - sizeof(RecordHeader);
  }
  /// @p bytes: what follows the header; at most room().
  void put(const RecordHeader& header, const std::byte* data, std::size_t bytes) noexcept {
    write(&header, sizeof header);
    write(data, bytes);
    head_ += padding(head_);
    control_->head.store(head_, std::memory_order_seq_cst);
  }
  /// Bytes of eager messages that have found their receive.
  std::uint64_t taken() const noexcept { return control_->taken.load(std::memory_order_acquire); }

  static std::uint64_t padding(std::uint64_t position) noexcept { return -position % sizeof(RecordHeader); }

 private:
  void write(const void* from, std::size_t bytes) noexcept {
    if (bytes == 0) return;
    const std::size_t at = head_ & (size_ - 1);
    const std::size_t first = bytes < size_ - at ? bytes : size_ - at;
    copy_bytes(data_ + at, from, first);
    copy_bytes(data_, static_cast<const std::byte*>(from) + first, bytes - first);
    head_ += bytes;
  }

  RingControl* control_;
  std::byte* data_;
  std::size_t size_;
  std::uint64_t head_;
  std::uint64_t tail_;
};

class RingReader {
 public:
  RingReader(const SegmentView& view, int from, int to, std::uint64_t first)
      : control_(&view.ring_control(from, to)),
        data_(view.ring(from, to)),
        size_(view.layout().ring_bytes()),
        tail_(first) {
    control_->tail.store(first, std::memory_order_release);
  }

  /// Whether there is a record; takes its header.
  bool next(RecordHeader& header) noexcept {
    if (control_->head.load(std::memory_order_acquire) == tail_) return false;
    read(&header, sizeof header);
    return true;
  }
  /// The bytes of the record whose header was taken.
  void read(void* to, std::size_t bytes) noexcept {
    if (bytes == 0) return;
    const std::size_t at = tail_ & (size_ - 1);
    const std::size_t first = bytes < size_ - at ? bytes : size_ - at;
    copy_bytes(to, data_ + at, first);
    copy_bytes(static_cast<std::byte*>(to) + first, data_, bytes - first);
    tail_ += bytes;
  }
  /// Gives the record's room back.
  void release() noexcept {
    tail_ += RingWriter::padding(tail_);
    control_->tail.store(tail_, std::memory_order_seq_cst);
  }
  void take(std::uint64_t bytes) noexcept {
    taken_ += bytes;
    control_->taken.store(taken_, std::memory_order_seq_cst);
  }

 private:
  RingControl* control_;
  std::byte* data_;
  std::size_t size_;
  std::uint64_t tail_;
  std::uint64_t taken_ = 0;
};

}  // namespace ddp::collectives::shm
