#include "stream/framing.hpp"

#include <cstdint>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::stream {
namespace {

constexpr std::size_t kHeaderBytes = 4;

std::uint32_t read_length(std::span<const std::byte> header) {
  std::uint32_t length = 0;
  for (const std::byte byte : header.first(kHeaderBytes)) length = length << 8U | std::to_integer<std::uint32_t>(byte);
  return length;
}

}  // namespace

void FrameBuffer::append(std::span<const std::byte> bytes) {
  // Moving the rest costs at most as much as what was consumed before.
  if (consumed_ >= buffer_.size() - consumed_) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(consumed_));
    consumed_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

std::optional<Bytes> FrameBuffer::next() {
  const auto rest = std::span{buffer_}.subspan(consumed_);
  if (rest.size() < kHeaderBytes) return std::nullopt;
  const std::size_t length = read_length(rest);
  if (length > max_frame_bytes_) {
    throw Error{
        {.code = ErrorCode::protocol,
         .attempted = "receiving a message",
         .cause = fmt::format("its length is given as {} bytes; at most {} are allowed", length, max_frame_bytes_)}};
  }
  if (rest.size() - kHeaderBytes < length) return std::nullopt;
  const auto payload = rest.subspan(kHeaderBytes, length);
  Bytes whole{payload.begin(), payload.end()};
  consumed_ += kHeaderBytes + length;
  if (consumed_ == buffer_.size()) {
    buffer_ = Bytes{};  // frees the memory of a long message
    consumed_ = 0;
  }
  return whole;
}

Bytes frame(std::span<const std::byte> payload) {
  Bytes framed;
  framed.reserve(kHeaderBytes + payload.size());
  for (std::size_t i = 0; i < kHeaderBytes; ++i) {
    framed.push_back(static_cast<std::byte>(payload.size() >> (8 * (kHeaderBytes - 1 - i)) & 0xFFU));
  }
  framed.insert(framed.end(), payload.begin(), payload.end());
  return framed;
}

std::optional<Bytes> SealedMessages::next() {
  const auto sealed = frames_.next();
  return sealed ? std::optional{cipher_.open(*sealed)} : std::nullopt;
}

}  // namespace ddp::stream
