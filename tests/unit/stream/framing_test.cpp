// Frames do not depend on the pieces in which bytes arrive, and only the other side's next sealed message is one.
#include "stream/framing.hpp"

#include <ddp/error.hpp>

namespace ddp::stream {
namespace {

TEST(FrameBuffer, CutsAStreamIntoFramesWhateverThePiecesAre) {
  Bytes stream;
  std::vector<Bytes> frames;
  for (const std::size_t size : {0, 1, 3, 4, 5, 255, 256, 70'000}) {
    Bytes& payload = frames.emplace_back(size);
    for (std::size_t i = 0; i < size; ++i) payload[i] = static_cast<std::byte>(i * 31 + i / 251);
    const Bytes framed = frame(payload);
    EXPECT_EQ(framed.size(), size + 4);
    stream.insert(stream.end(), framed.begin(), framed.end());
  }
  for (const std::size_t step : {1UL, 2UL, 3UL, 5UL, 64UL, 4096UL, stream.size()}) {
    FrameBuffer buffer{70'000};
    std::vector<Bytes> found;
    for (std::size_t at = 0; at < stream.size(); at += step) {
      buffer.append(std::span{stream}.subspan(at, std::min(step, stream.size() - at)));
      while (auto next = buffer.next()) found.push_back(*std::move(next));
    }
    EXPECT_EQ(found, frames) << step;
    EXPECT_FALSE(buffer.has_part());
  }
}

TEST(FrameBuffer, RefusesALengthAboveTheLimitBeforeTheBytesAreThere) {
  FrameBuffer buffer{4096};
  buffer.append(frame(Bytes(4096)));
  EXPECT_EQ(buffer.next()->size(), 4096U);
  buffer.append(Bytes{std::byte{0}, std::byte{0}, std::byte{0x10}});
  EXPECT_EQ(buffer.next(), std::nullopt);
  EXPECT_TRUE(buffer.has_part());
  buffer.append(Bytes{std::byte{1}});  // 4097
  EXPECT_THROW(buffer.next(), Error);
}

TEST(SealedMessages, AreReadInTheirOrderAndByTheOtherSideAlone) {
  const EphemeralKey one, other;
  SealedMessages sending{one.agree(HandshakeSide::connecting, other.public_key()), 100};
  SealedMessages receiving{other.agree(HandshakeSide::accepting, one.public_key()), 100};
  const Bytes text(100, std::byte{'x'});
  const Bytes first = sending.seal(text);
  receiving.append(std::span{first}.first(7));
  EXPECT_EQ(receiving.next(), std::nullopt);
  receiving.append(std::span{first}.subspan(7));
  EXPECT_EQ(receiving.next(), text);
  receiving.append(first);  // again
  EXPECT_THROW(receiving.next(), Error);
  SealedMessages longer{other.agree(HandshakeSide::accepting, one.public_key()), 99};
  longer.append(first);
  EXPECT_THROW(longer.next(), Error);
}

}  // namespace
}  // namespace ddp::stream
