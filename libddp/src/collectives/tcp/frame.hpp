// What travels on a connection between two ranks once both have proven themselves: frames of a header and some payload.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/backend.hpp>

#include "base/message_fields.hpp"

namespace ddp::collectives::tcp {

enum class FrameKind : std::uint8_t {
  collective = 1,  ///< a part of a collective: context, ordinal, step
  eager,           ///< a whole small message: context, tag
  announce,        ///< of a message that waits for a grant: context, tag, number
  grant,           ///< the receiver has a place for the message of that number: context, number
  data,            ///< its bytes: context, number
  credit,          ///< carries nothing but Frame::credit
  failure,         ///< the sender's group has failed; the payload is a FailureNotice
  goodbye,         ///< the sender has left regularly and sends no more
};

inline constexpr std::size_t kHeaderBytes = 48;
/// Longer messages are cut into frames of this size, so that what has to be said in between waits at most for one.
inline constexpr std::size_t kMostPayloadBytes = 512 * 1024;

/// A header, without magic and version.
struct Frame {
  FrameKind kind = FrameKind::credit;
  std::uint16_t context = 0;
  std::uint32_t step = 0;     ///< of a collective; the tag of eager and announce
  std::uint32_t credit = 0;   ///< bytes of eager messages that have left the receiver's buffers since the last frame
  std::uint64_t ordinal = 0;  ///< of a collective among those of its context; the number of announce, grant, data
  std::uint64_t fingerprint = 0;  ///< Operation::fingerprint
  std::uint32_t bytes = 0;        ///< payload of this frame
  std::uint64_t total = 0;        ///< of the whole message
  DType dtype = DType::float32;   ///< of the elements of eager and announce
  friend bool operator==(const Frame&, const Frame&) = default;
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encode(const Frame& frame) noexcept;
/// Nothing when it is no header of this version, or its values do not fit together.
std::optional<Frame> parse_frame(std::span<const std::byte, kHeaderBytes> bytes) noexcept;

/// Why a rank's operations have ended: told to those that may wait for it.
struct FailureNotice {
  Outcome outcome = Outcome::peers_failed;  ///< peers_failed or mismatch
  std::vector<int> ranks{};                 ///< of the mesh
  std::string cause{};
  friend bool operator==(const FailureNotice&, const FailureNotice&) = default;
};
constexpr auto description(const FailureNotice*) {
  return base::describe({"notice of a failure"}, base::fields<&FailureNotice::outcome>(base::kUpTo<Outcome::aborted>),
                        base::fields<&FailureNotice::ranks>(base::kCount),
                        base::fields<&FailureNotice::cause>(base::Rule{.longest = 1024, .cut = true}));
}

inline constexpr std::size_t kMostNoticeBytes = 16 * 1024;

/// Names as many ranks as there is room for.
Bytes encode(FailureNotice notice);
/// @param size of the mesh. Throws Error(protocol).
FailureNotice decode_failure_notice(std::span<const std::byte> bytes, int size);

}  // namespace ddp::collectives::tcp
