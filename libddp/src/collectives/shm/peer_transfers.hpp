// Sends and receives between this rank and one other. A message matches the first receive posted with its tag. Small
// ones go at once and wait at the receiver, up to a limit; the others are announced, asked for by the receive that
// they match, and come in pieces.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <ddp/backend.hpp>
#include <ddp/bytes.hpp>
#include <ddp/operation.hpp>

#include "collectives/shm/byte_ring.hpp"
#include "collectives/shm/doorbell.hpp"

namespace ddp::collectives::shm {

class PeerTransfers {
 public:
  /// @p first: where the positions in the rings begin. Before any other rank uses the segment.
  PeerTransfers(const SegmentView& view, int rank, int peer, std::uint64_t first, Doorbell& bell);

  /// @p unfinished: decremented when the memory of @p operation is not used any more.
  void post(const Operation& operation, std::size_t& unfinished);
  /// Whether anything is posted and not over.
  bool busy() const { return posted_ != 0; }
  /// While busy(): goes on for some 50 us at most; whether anything moved.
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
    std::uint64_t id;       ///< of an announced message
    std::size_t moved = 0;  ///< bytes
  };
  /// What came before its receive.
  struct Arrival {
    RecordHeader header;
    Bytes data;  ///< of an eager message
  };

  /// Made by the first post: each of the seven takes memory at once, and most pairs of ranks never send messages.
  struct Queues {
    std::deque<Transfer> to_send;      ///< in posting order
    std::deque<Transfer> announced;    ///< the peer knows of them
    std::deque<Transfer> asked_for;    ///< they go in pieces
    std::deque<std::uint64_t> to_ask;  ///< ids
    std::deque<Transfer> to_receive;   ///< in posting order
    std::deque<Transfer> receiving;    ///< in pieces
    std::deque<Arrival> arrivals;
  };

  bool take_records();
  void take(const RecordHeader& header);
  void match(Transfer receive, const RecordHeader& header);
  void refuse(const Operation& receive, const RecordHeader& header);
  bool send_records();
  bool send_pieces();
  void finish(const Transfer& transfer);

  RingReader in_;
  RingWriter out_;
  Doorbell& bell_;
  std::size_t posted_ = 0;
  bool mismatch_ = false;
  std::optional<UnfitMessage> unfit_;
  std::uint64_t next_id_ = 0;
  std::uint64_t eager_sent_ = 0;  ///< bytes
  std::unique_ptr<Queues> queues_;
};

}  // namespace ddp::collectives::shm
