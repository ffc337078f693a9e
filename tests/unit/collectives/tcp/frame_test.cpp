// Headers and notices between ranks: what is written is read again, and nothing else is.
#include "collectives/tcp/frame.hpp"

#include <ddp/error.hpp>

#include "support/message_check.hpp"

namespace ddp::collectives::tcp {
namespace {

Frame sample() {
  return {.kind = FrameKind::collective,
          .context = 3,
          .step = 0x01020304,
          .credit = 5,
          .ordinal = 0xfffffffffffffff0,
          .fingerprint = 0x1122334455667788,
          .bytes = kMostPayloadBytes,
          .total = std::uint64_t{1} << 40U};
}

TEST(TcpFrame, IsReadAsItWasWritten) {
  EXPECT_EQ(parse_frame(encode(sample())), sample());
  EXPECT_EQ(parse_frame(encode({.kind = FrameKind::goodbye})), Frame{.kind = FrameKind::goodbye});
}

TEST(TcpFrame, OfAnotherVersionOrWithoutMagicIsNone) {
  for (const std::size_t at : {0U, 1U, 2U, 6U, 7U, 36U}) {
    HeaderBytes bytes = encode(sample());
    bytes[at] ^= std::byte{0x40};
    EXPECT_FALSE(parse_frame(bytes)) << at;
  }
  EXPECT_FALSE(parse_frame(HeaderBytes{}));
}

TEST(TcpFrame, WhoseValuesDoNotFitIsNone) {
  const auto changed = [](auto change) {
    Frame frame = sample();
    change(frame);
    return parse_frame(encode(frame));
  };
  EXPECT_FALSE(changed([](Frame& frame) { frame.kind = static_cast<FrameKind>(0); }));
  EXPECT_FALSE(changed([](Frame& frame) { frame.kind = static_cast<FrameKind>(9); }));
  EXPECT_FALSE(changed([](Frame& frame) { frame.bytes = kMostPayloadBytes + 1; }));
  EXPECT_FALSE(changed([](Frame& frame) { frame.total = frame.bytes - 1; }));
  EXPECT_FALSE(changed([](Frame& frame) { frame.bytes = 0; })) << "an empty frame of a message that is not empty";
  EXPECT_FALSE(changed([](Frame& frame) { frame.kind = FrameKind::grant; })) << "a grant with payload";
  EXPECT_FALSE(changed([](Frame& frame) { frame.kind = FrameKind::eager; })) << "a part of an eager message";
  EXPECT_FALSE(changed([](Frame& frame) { frame.kind = FrameKind::failure; })) << "a notice beyond the limit";
}

TEST(TcpFailureNotice, IsReadAsItWasWritten) {
  const FailureNotice notice{.outcome = Outcome::mismatch, .ranks = {0, 3}, .cause = "different calls"};
  EXPECT_EQ(decode_failure_notice(encode(notice), 4), notice);
  tests::check_message<FailureNotice>();
}

TEST(TcpFailureNotice, IsBoundedWhateverItSays) {
  FailureNotice notice{.outcome = Outcome::peers_failed, .cause = std::string(100'000, 'x')};
  for (int rank = 0; rank < 100'000; ++rank) notice.ranks.push_back(rank);
  const Bytes bytes = encode(notice);
  EXPECT_LE(bytes.size(), kMostNoticeBytes);
  EXPECT_GT(decode_failure_notice(bytes, 100'000).ranks.size(), 1000U);
}

TEST(TcpFailureNotice, OfUnknownRanksIsRefused) {
  const Bytes bytes = encode(FailureNotice{.outcome = Outcome::peers_failed, .ranks = {4}, .cause = ""});
  EXPECT_THROW(decode_failure_notice(bytes, 4), Error);
  EXPECT_THROW(decode_failure_notice(encode(FailureNotice{.ranks = {1, 0}}), 4), Error);
  EXPECT_THROW(decode_failure_notice(encode(FailureNotice{.outcome = Outcome::ok}), 4), Error);
}

}  // namespace
}  // namespace ddp::collectives::tcp
