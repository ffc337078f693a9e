#include "collectives/tcp/frame.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include <ddp/error.hpp>

#include "base/message.hpp"

namespace ddp::collectives::tcp {
namespace {

static_assert(std::endian::native == std::endian::little, "the layout below is that of the memory");

// As on the wire; the compiler makes plain stores of it.
struct Layout {
  std::uint16_t magic;
  std::uint8_t version;
  std::uint8_t kind;
  std::uint16_t context;
  std::uint8_t dtype;
  std::uint8_t reserved;
  std::uint32_t step;
  std::uint32_t credit;
  std::uint64_t ordinal;
  std::uint64_t fingerprint;
  std::uint32_t bytes;
  std::uint32_t reserved_too;
  std::uint64_t total;
};
static_assert(sizeof(Layout) == kHeaderBytes);

constexpr std::uint16_t kFrameMagic = 0xd7a1;
constexpr std::uint8_t kVersion = 1;

bool carries_payload(FrameKind kind) {
  return kind == FrameKind::collective || kind == FrameKind::eager || kind == FrameKind::data ||
         kind == FrameKind::failure;
}

[[noreturn]] void refuse(const char* cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading the notice of a failure",
               .cause = cause,
               .hint = "do all ranks run the same version of libddp?"}};
}

}  // namespace

HeaderBytes encode(const Frame& frame) noexcept {
  const Layout layout{.magic = kFrameMagic,
                      .version = kVersion,
                      .kind = static_cast<std::uint8_t>(frame.kind),
                      .context = frame.context,
                      .dtype = static_cast<std::uint8_t>(frame.dtype),
                      .reserved = 0,
                      .step = frame.step,
                      .credit = frame.credit,
                      .ordinal = frame.ordinal,
                      .fingerprint = frame.fingerprint,
                      .bytes = frame.bytes,
                      .reserved_too = 0,
                      .total = frame.total};
  return std::bit_cast<HeaderBytes>(layout);
}

std::optional<Frame> parse_frame(std::span<const std::byte, kHeaderBytes> bytes) noexcept {
  Layout layout;
  std::memcpy(&layout, bytes.data(), sizeof layout);
  if (layout.magic != kFrameMagic || layout.version != kVersion || layout.reserved != 0 || layout.reserved_too != 0 ||
      layout.kind < static_cast<std::uint8_t>(FrameKind::collective) ||
      layout.kind > static_cast<std::uint8_t>(FrameKind::goodbye) ||
      layout.dtype > static_cast<std::uint8_t>(DType::complex128))
    return std::nullopt;
  const Frame frame{.kind = static_cast<FrameKind>(layout.kind),
                    .context = layout.context,
                    .step = layout.step,
                    .credit = layout.credit,
                    .ordinal = layout.ordinal,
                    .fingerprint = layout.fingerprint,
                    .bytes = layout.bytes,
                    .total = layout.total,
                    .dtype = static_cast<DType>(layout.dtype)};
  if (frame.bytes > kMostPayloadBytes || (carries_payload(frame.kind) ? frame.bytes > frame.total : frame.bytes != 0))
    return std::nullopt;
  if (frame.kind == FrameKind::failure && (frame.bytes > kMostNoticeBytes || frame.bytes != frame.total))
    return std::nullopt;
  if (frame.kind == FrameKind::eager && frame.bytes != frame.total) return std::nullopt;
  // a message with bytes has no empty frames: its receiver would never come to its end
  if (carries_payload(frame.kind) && frame.bytes == 0 && frame.total != 0) return std::nullopt;
  return frame;
}

Bytes encode(FailureNotice notice) {
  constexpr std::size_t kMostRanks = (kMostNoticeBytes - 2048) / sizeof(std::int32_t);
  if (notice.ranks.size() > kMostRanks) notice.ranks.resize(kMostRanks);
  return base::encode(notice);
}

FailureNotice decode_failure_notice(std::span<const std::byte> bytes, int size) {
  auto notice = base::decode<FailureNotice>(bytes);
  if (notice.outcome != Outcome::peers_failed && notice.outcome != Outcome::mismatch)
    refuse("it is of an unknown kind");
  if (!std::is_sorted(notice.ranks.begin(), notice.ranks.end())) refuse("its ranks are out of order");
  if (!notice.ranks.empty() && notice.ranks.back() >= size) refuse("it names a rank that does not exist");
  return notice;
}

}  // namespace ddp::collectives::tcp
