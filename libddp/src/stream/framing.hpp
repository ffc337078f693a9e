// Messages on a byte stream: frames behind their length, and messages that are sealed in them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include <ddp/bytes.hpp>

#include "stream/secret.hpp"

namespace ddp::stream {

/// Cuts a byte stream into frames: a 32-bit length in network byte order, then that many bytes.
class FrameBuffer {
 public:
  explicit FrameBuffer(std::size_t max_frame_bytes) : max_frame_bytes_(max_frame_bytes) {}
  void append(std::span<const std::byte> bytes);
  /// The next whole frame. Throws Error(protocol) for a length above the limit.
  std::optional<Bytes> next();
  /// Whether part of a frame is buffered.
  bool has_part() const { return consumed_ < buffer_.size(); }

 private:
  std::size_t max_frame_bytes_;
  Bytes buffer_;
  std::size_t consumed_ = 0;
};

Bytes frame(std::span<const std::byte> payload);

/// Short messages of a connection whose ends have agreed on keys, each a frame.
class SealedMessages {
 public:
  /// @param most_bytes of a message
  SealedMessages(SessionCipher cipher, std::size_t most_bytes)
      : cipher_(std::move(cipher)), frames_(most_bytes + SessionCipher::kOverheadBytes) {}

  /// What is to be sent for the next message, in this order.
  Bytes seal(std::span<const std::byte> message) { return frame(cipher_.seal(message)); }
  void append(std::span<const std::byte> received) { frames_.append(received); }
  /// The next whole message. Throws Error(protocol) for what the other side has not sealed.
  std::optional<Bytes> next();

 private:
  SessionCipher cipher_;
  FrameBuffer frames_;
};

}  // namespace ddp::stream
