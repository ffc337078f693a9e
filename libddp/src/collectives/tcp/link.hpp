// The connection to another rank, once both have proven themselves: a queue of messages to send, and frames that
// arrive. Non-blocking in both directions, so that two ranks that send each other more than the sockets hold both keep
// receiving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "base/unique_fd.hpp"
#include "collectives/tcp/frame.hpp"

namespace ddp::collectives::tcp {

// Messages as connections see them: bytes to send, or a place for bytes to come. Owned by the operation that they
// belong to; a connection links them into its queues while they wait, without allocating.

struct Outgoing {
  Frame frame;  ///< all but bytes, credit and total, which the connection fills in
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t* left = nullptr;  ///< counted down when the kernel has all of it; may be null

  // the connection's
  Outgoing* next = nullptr;
  std::size_t taken = 0;        ///< bytes of data in frames before the present one
  std::size_t header_left = 0;  ///< of the present frame
  std::size_t payload_left = 0;
  bool begun = false;
  HeaderBytes header{};
};

struct Incoming {
  std::uint16_t context = 0;
  std::uint32_t step = 0;
  std::uint64_t ordinal = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t* left = nullptr;  ///< counted down when all has arrived; may be null

  // the connection's
  Incoming* next = nullptr;
  std::size_t received = 0;
  bool done = false;
};

/// Where a frame's payload goes.
struct Placement {
  enum class Kind : std::uint8_t {
    here,     ///< into `at`; whole() is called when all of it is there
    not_yet,  ///< nobody waits for it: it stays unread until Link::retry()
    refuse,   ///< the mesh has failed over it
  };
  Kind kind = Kind::here;
  std::byte* at = nullptr;
};

/// What a connection tells its mesh.
class LinkOwner {
 public:
  virtual Placement place(int rank, const Frame& frame) = 0;
  /// The payload of the frame that was placed last.
  virtual void whole(int rank, const Frame& frame) = 0;
  /// @param error errno, 0 for an end of the stream. @param garbage it sent what is no frame
  virtual void ended(int rank, int error, bool garbage) = 0;

 protected:
  LinkOwner() = default;
  LinkOwner(const LinkOwner&) = default;
  LinkOwner& operator=(const LinkOwner&) = default;
  ~LinkOwner() = default;
};

class Link {
 public:
  /// Messages may be queued before there is a connection.
  Link(int rank, LinkOwner& owner) : rank_(rank), owner_(&owner) {}
  Link& operator=(Link&&) = delete;
  ~Link() = default;

  int rank() const noexcept { return rank_; }
  int fd() const noexcept { return socket_.get(); }
  void open(base::UniqueFd socket);
  void close() noexcept;
  bool is_open() const noexcept { return static_cast<bool>(socket_) && !ended_; }

  /// Puts @p message at the end of the queue; flush() sends. It stays in place until it is sent or drop().
  void enqueue(Outgoing& message) noexcept;
  /// A small message of the mesh's own.
  void enqueue_own(const Frame& frame, Bytes payload = {});
  /// Adds to the credit of the next frame.
  void give_credit(std::size_t bytes) noexcept { credit_ += bytes; }
  std::size_t ungiven_credit() const noexcept { return credit_; }

  /// Sends what the socket takes now. @return whether anything moved.
  bool flush();
  /// Reads what is there and has a place, at most some 100 us of it. @return whether anything moved.
  bool receive();
  /// A place may have been made for the frame that waits unread.
  void retry() noexcept { stalled_ = false; }

  /// A part of a collective is to come. @p message stays in place until it is done or drop().
  void expect(Incoming& message) noexcept;
  /// It has come.
  void take(Incoming& message) noexcept;
  Incoming* expected() const noexcept { return expected_; }
  bool sends() const noexcept { return first_ != nullptr; }
  /// Whether the other host has yet to take some of what has been sent.
  bool undelivered() const noexcept;
  /// Throws away what has come.
  void clear() const noexcept;
  bool stalled() const noexcept { return stalled_; }

  /// Forgets all messages, and completes the frame that is half sent from a copy of its bytes, so that more can be said
  /// on this connection. What arrives from now on is thrown away.
  void drop();

  // what the mesh notes
  std::size_t transfers_due = 0;    ///< sends and receives that wait for a frame of this rank
  std::uint32_t watched = 0;        ///< events that epoll reports
  std::size_t eager_in_flight = 0;  ///< bytes of eager messages whose credit has not come back

 private:
  struct OwnMessage {
    Outgoing message;
    Bytes payload;
  };

  static constexpr std::size_t kStagingBytes = 16 * 1024;

  void begin_frame(Outgoing& message) noexcept;
  void sent(std::size_t bytes) noexcept;
  std::size_t fill();
  bool consume_staged();
  void finish_payload();
  std::size_t num_staged() const noexcept { return staged_end_ - staged_begin_; }

  int rank_;
  base::UnsharedFd socket_;
  LinkOwner* owner_;
  bool ended_ = false;
  int send_error_ = 0;  ///< errno

  Outgoing* first_ = nullptr;
  Outgoing* last_ = nullptr;
  Incoming* expected_ = nullptr;
  Incoming* last_expected_ = nullptr;
  std::deque<std::unique_ptr<OwnMessage>> own_;  // in the order of the queue
  std::size_t credit_ = 0;

  Frame frame_{};  // whose payload is due, or which is stalled
  std::size_t payload_left_ = 0;
  std::byte* at_ = nullptr;  // null: it is thrown away
  bool placed_ = false;      // frame_ has been placed and is not whole yet
  bool stalled_ = false;
  bool has_frame_ = false;  // frame_ waits for a place
  bool discard_ = false;
  std::size_t staged_begin_ = 0;
  std::size_t staged_end_ = 0;
  std::unique_ptr<std::byte[]> staging_;
};

}  // namespace ddp::collectives::tcp
