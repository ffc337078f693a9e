// Sends and receives between this rank and one other. A message matches the first receive posted with its tag. Small
// ones go at once and wait at the receiver, up to a limit; the others are announced. The receive that such a one
// matches copies it out of the sender's memory, or where it cannot, asks for it, and it comes in pieces.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include <ddp/backend.hpp>
#include <ddp/bytes.hpp>
#include <ddp/operation.hpp>
#include <ddp/tensor_view.hpp>

#include "collectives/shm/peer_memory.hpp"
#include "collectives/shm/segment_layout.hpp"
#include "collectives/shm/step_board.hpp"

namespace ddp::collectives::shm {

// ---- A queue of records from one rank to another in shared memory: one writer, one reader. A record is a header and
// its bytes, padded to whole headers.

enum class RecordKind : std::uint16_t {
  eager,     ///< a whole message
  announce,  ///< a message that waits until it is taken or asked for: its address
  taken,     ///< a message of the reader was copied out of its memory
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

class PeerTransfers {
 public:
  /// @p first: where the positions in the rings begin. Before any other rank uses the segment. @p reads: whether it
  /// tries to read the peer's memory.
  PeerTransfers(const SegmentView& view, int rank, int peer, std::uint64_t first, Doorbell& bell, bool reads);

  /// @p unfinished: decremented when the memory of @p operation is not used any more.
  void post(const Operation& operation, std::size_t& unfinished);
  /// Whether anything is posted and not over.
  bool busy() const { return posted_ != 0; }
  /// While busy(): continues for some 50 us, or a part of a message; whether anything moved.
  bool advance();
  /// Whether a message met a receive of another size or type; for good.
  bool mismatch() const { return mismatch_; }
  /// Which; nothing where sizes and types are the same.
  const std::optional<UnfitMessage>& unfit() const { return unfit_; }
  /// Whether an operation that was posted is not over.
  bool waits(const Operation& operation) const;

 private:
  struct Transfer {
    const Operation* operation;
    std::size_t* unfinished;
    std::uint64_t id = 0;    ///< of an announced message
    std::uint64_t from = 0;  ///< where the sender has it
    std::size_t moved = 0;   ///< bytes
  };
  /// What came before its receive.
  struct Arrival {
    RecordHeader header;
    std::uint64_t from = 0;  ///< of an announced message
    Bytes data{};            ///< of an eager message
  };

  /// Made by the first post: each of the eight takes memory at once, and most pairs of ranks never send messages.
  struct Queues {
    std::deque<Transfer> to_send;      ///< in posting order
    std::deque<Transfer> announced;    ///< the peer knows of them
    std::deque<Transfer> asked_for;    ///< they go in pieces
    std::deque<std::uint64_t> to_ask;  ///< ids
    std::deque<Transfer> to_receive;   ///< in posting order
    std::deque<Transfer> reading;      ///< out of the peer's memory
    std::deque<Transfer> receiving;    ///< in pieces
    std::deque<Arrival> arrivals;
  };

  bool take_records();
  void take(const RecordHeader& header);
  void match(Transfer receive, const RecordHeader& header, std::uint64_t from);
  void refuse(const Operation& receive, const RecordHeader& header);
  bool read_messages();
  void ask_instead();
  bool send_records();
  bool send_pieces();
  void finish(const Transfer& transfer);

  RingReader in_;
  RingWriter out_;
  Doorbell& bell_;
  PeerMemory memory_;
  bool reads_;
  std::size_t posted_ = 0;
  bool mismatch_ = false;
  std::optional<UnfitMessage> unfit_;
  std::uint64_t next_id_ = 0;
  std::uint64_t eager_sent_ = 0;  ///< bytes
  std::unique_ptr<Queues> queues_;
};

}  // namespace ddp::collectives::shm
