#include "collectives/tcp/link.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

namespace ddp::collectives::tcp {
namespace {

// The most that one call moves, which bounds the time of a poll.
constexpr std::size_t kMovedAtOnceBytes = 512 * 1024;
constexpr std::size_t kPartsAtOnce = 16;
// Bytes per call to the kernel. In a collective this side mostly receives, too: data that has arrived should still be
// in the cache when it is read.
constexpr std::size_t kBatchBytes = 128 * 1024;
constexpr std::size_t kCollectiveFrameBytes = 256 * 1024;

bool would_block(int number) { return number == EAGAIN || number == EWOULDBLOCK; }

}  // namespace

void Link::open(base::UniqueFd socket) {
  staging_ = std::make_unique_for_overwrite<std::byte[]>(kStagingBytes);
  socket_ = base::UnsharedFd{std::move(socket)};
}

void Link::close() noexcept {
  ended_ = true;
  socket_.reset();
}

void Link::enqueue(Outgoing& message) noexcept {
  message.next = nullptr;
  message.taken = 0;
  message.begun = false;
  (first_ == nullptr ? first_ : last_->next) = &message;
  last_ = &message;
}

void Link::enqueue_own(const Frame& frame, Bytes payload) {
  own_.push_back(std::make_unique<OwnMessage>());
  OwnMessage& own = *own_.back();
  own.payload = std::move(payload);
  own.message.frame = frame;
  own.message.data = own.payload.data();
  own.message.bytes = own.payload.size();
  enqueue(own.message);
}

void Link::expect(Incoming& message) noexcept {
  message.next = nullptr;
  (expected_ == nullptr ? expected_ : last_expected_->next) = &message;
  last_expected_ = &message;
  retry();
}

void Link::take(Incoming& message) noexcept {
  Incoming* before = nullptr;
  Incoming** place = &expected_;
  for (; *place != &message; place = &before->next) before = *place;
  *place = message.next;
  if (last_expected_ == &message) last_expected_ = before;
}

void Link::begin_frame(Outgoing& message) noexcept {
  message.begun = true;
  const std::size_t most = message.frame.kind == FrameKind::data ? kMostPayloadBytes : kCollectiveFrameBytes;
  message.payload_left = std::min(message.bytes - message.taken, most);
  message.header_left = kHeaderBytes;
  message.frame.bytes = static_cast<std::uint32_t>(message.payload_left);
  if (message.bytes != 0) message.frame.total = message.bytes;
  const std::size_t credit = std::min<std::size_t>(credit_, std::numeric_limits<std::uint32_t>::max());
  message.frame.credit = static_cast<std::uint32_t>(credit);
  credit_ -= credit;
  message.header = encode(message.frame);
}

void Link::sent(std::size_t bytes) noexcept {
  while (first_ != nullptr) {
    Outgoing& message = *first_;
    if (!message.begun) return;
    const std::size_t of_header = std::min(bytes, message.header_left);
    message.header_left -= of_header;
    bytes -= of_header;
    const std::size_t of_payload = message.header_left == 0 ? std::min(bytes, message.payload_left) : 0;
    message.payload_left -= of_payload;
    bytes -= of_payload;
    if (message.header_left != 0 || message.payload_left != 0) return;
    message.taken += message.frame.bytes;
    message.begun = false;
    if (message.taken != message.bytes) {
      begin_frame(message);
      continue;
    }
    first_ = message.next;
    if (first_ == nullptr) last_ = nullptr;
    if (message.left != nullptr) --*message.left;
    if (!own_.empty() && &own_.front()->message == &message) own_.pop_front();
  }
}

bool Link::flush() {
  bool moved = false;
  for (std::size_t total = 0; first_ != nullptr && is_open() && total < kMovedAtOnceBytes;) {
    std::array<iovec, kPartsAtOnce> parts{};
    std::size_t count = 0;
    std::size_t size = 0;
    for (Outgoing* message = first_; message != nullptr && count + 2 <= parts.size(); message = message->next) {
      if (!message->begun) begin_frame(*message);
      if (message->header_left != 0) {
        parts[count++] = {.iov_base = message->header.data() + (kHeaderBytes - message->header_left),
                          .iov_len = message->header_left};
      }
      if (message->payload_left != 0) {
        const std::size_t from = message->taken + message->frame.bytes - message->payload_left;
        parts[count++] = {.iov_base = const_cast<std::byte*>(message->data) + from, .iov_len = message->payload_left};
      }
      size += message->header_left + message->payload_left;
      if (message->taken + message->frame.bytes != message->bytes || size >= kBatchBytes) break;
    }
    msghdr header{};
    header.msg_iov = parts.data();
    header.msg_iovlen = count;
    const ssize_t took = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (took < 0) {
      if (errno == EINTR) continue;
      // A broken connection may still hold the other side's last data: receive() finds its end. The kernel reports the
      // reason only once. EPIPE is not the reason: the other side had closed.
      if (!would_block(errno) && errno != EPIPE) send_error_ = errno;
      return moved;
    }
    moved = true;
    total += static_cast<std::size_t>(took);
    sent(static_cast<std::size_t>(took));
    if (static_cast<std::size_t>(took) < size) return moved;
  }
  return moved;
}

void Link::finish_payload() {
  placed_ = false;
  at_ = nullptr;
  if (!discard_) owner_->whole(rank_, frame_);
}

/// Takes frames and payload from the staging area. @return whether to read more
bool Link::consume_staged() {
  for (;;) {
    if (placed_) {
      const std::size_t size = std::min(payload_left_, num_staged());
      if (size != 0 && at_ != nullptr) {
        std::memcpy(at_, staging_.get() + staged_begin_, size);
        at_ += size;
      }
      staged_begin_ += size;
      payload_left_ -= size;
      if (payload_left_ != 0) return true;
      finish_payload();
      if (ended_) return false;
    }
    if (!has_frame_) {
      if (num_staged() < kHeaderBytes) return true;
      const auto frame =
          parse_frame(std::span<const std::byte, kHeaderBytes>(staging_.get() + staged_begin_, kHeaderBytes));
      staged_begin_ += kHeaderBytes;
      if (!frame) {
        ended_ = true;
        owner_->ended(rank_, 0, true);
        return false;
      }
      frame_ = *frame;
      has_frame_ = true;
      eager_in_flight -= std::min<std::size_t>(frame_.credit, eager_in_flight);
      frame_.credit = 0;
    }
    Placement placement{};
    if (!discard_) placement = owner_->place(rank_, frame_);
    if (placement.kind == Placement::Kind::not_yet) {
      stalled_ = true;
      return false;
    }
    has_frame_ = false;
    placed_ = true;
    payload_left_ = frame_.bytes;
    at_ = discard_ || placement.kind == Placement::Kind::refuse ? nullptr : placement.at;
    if (placement.kind == Placement::Kind::refuse) discard_ = true;
  }
}

/// Reads once. @return the number of bytes
std::size_t Link::fill() {
  if (staged_begin_ == staged_end_) {
    staged_begin_ = staged_end_ = 0;
  } else if (staged_begin_ > kStagingBytes / 2) {
    std::memmove(staging_.get(), staging_.get() + staged_begin_, num_staged());
    staged_end_ = num_staged();
    staged_begin_ = 0;
  }
  for (;;) {
    ssize_t got = 0;
    const bool direct = placed_ && at_ != nullptr && payload_left_ != 0;  // the staging area is empty then
    if (direct) {
      // reads only the next header after it, so that the next payload also goes straight to its place
      std::array<iovec, 2> parts{
          {{.iov_base = at_, .iov_len = payload_left_}, {.iov_base = staging_.get(), .iov_len = kHeaderBytes}}};
      msghdr header{};
      header.msg_iov = parts.data();
      header.msg_iovlen = parts.size();
      got = ::recvmsg(socket_.get(), &header, MSG_DONTWAIT);
    } else {
      got = ::recv(socket_.get(), staging_.get() + staged_end_, kStagingBytes - staged_end_, MSG_DONTWAIT);
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_block(errno)) return 0;
    if (got <= 0) {
      ended_ = true;
      owner_->ended(rank_, got < 0 ? errno : send_error_, false);
      return 0;
    }
    auto size = static_cast<std::size_t>(got);
    if (direct) {
      const std::size_t of_payload = std::min(size, payload_left_);
      at_ += of_payload;
      payload_left_ -= of_payload;
      size -= of_payload;
    }
    staged_end_ += size;
    return static_cast<std::size_t>(got);
  }
}

bool Link::receive() {
  for (std::size_t total = 0;;) {
    if (!is_open() || stalled_ || !consume_staged()) return total != 0;
    const std::size_t got = fill();
    total += got;
    if (got == 0) return total != 0;
    if (total >= kMovedAtOnceBytes) {
      consume_staged();
      return true;
    }
  }
}

bool Link::undelivered() const noexcept {
  int bytes = 0;
  return is_open() && ::ioctl(socket_.get(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

void Link::clear() const noexcept {
  std::array<std::byte, 4096> unread{};
  while (is_open() && ::recv(socket_.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
  }
}

void Link::drop() {
  Bytes rest;
  if (first_ != nullptr && first_->begun && (first_->header_left != kHeaderBytes)) {
    const Outgoing& half = *first_;
    rest.assign(half.header.end() - static_cast<std::ptrdiff_t>(half.header_left), half.header.end());
    const std::byte* const from = half.data + half.taken + half.frame.bytes - half.payload_left;
    rest.insert(rest.end(), from, from + half.payload_left);
  }
  first_ = last_ = nullptr;
  own_.clear();
  if (!rest.empty()) {
    enqueue_own({}, std::move(rest));
    Outgoing& message = own_.back()->message;  // as a frame whose header has been sent
    message.begun = true;
    message.header_left = 0;
    message.payload_left = message.bytes;
    message.frame.bytes = static_cast<std::uint32_t>(message.bytes);
  }
  expected_ = last_expected_ = nullptr;
  transfers_due = 0;
  discard_ = true;
  at_ = nullptr;
  stalled_ = false;
}

}  // namespace ddp::collectives::tcp
