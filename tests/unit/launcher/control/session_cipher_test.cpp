// Two sides that agree on keys understand each other, in order, and nobody else does.
#include "control/session_cipher.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include <ddp/error.hpp>

namespace ddp::launcher::control {
namespace {

struct Pair {
  EphemeralKey one, other;
  SessionCipher connecting = one.agree(HandshakeSide::connecting, other.public_key());
  SessionCipher accepting = other.agree(HandshakeSide::accepting, one.public_key());
};

const Bytes kText(100, std::byte{'x'});

TEST(SessionCipher, BothSidesUnderstandEachOther) {
  Pair pair;
  for (int i = 0; i < 3; ++i) {
    const Bytes sealed = pair.connecting.seal(kText);
    EXPECT_EQ(sealed.size(), kText.size() + SessionCipher::kOverheadBytes);
    EXPECT_EQ(pair.accepting.open(sealed), kText);
    EXPECT_EQ(pair.connecting.open(pair.accepting.seal({})), Bytes{});
  }
}

TEST(SessionCipher, NothingCanBeReadChangedRepeatedDroppedOrReflected) {
  Pair pair;
  const Bytes first = pair.connecting.seal(kText);
  const Bytes second = pair.connecting.seal(kText);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::search(first.begin(), first.end(), kText.begin(), kText.begin() + 4), first.end());
  EXPECT_THROW(pair.accepting.open(second), Error);  // the first is missing
  EXPECT_THROW(pair.connecting.open(first), Error);  // its own
  for (std::size_t i = 0; i < first.size(); ++i) {
    Bytes wrong = first;
    wrong.at(i) ^= std::byte{1};
    EXPECT_THROW(pair.accepting.open(wrong), Error);
  }
  EXPECT_THROW(pair.accepting.open(std::span{first}.first(first.size() - 1)), Error);
  EXPECT_THROW(pair.accepting.open({}), Error);
  EXPECT_EQ(pair.accepting.open(first), kText);
  EXPECT_THROW(pair.accepting.open(first), Error);  // again
  EXPECT_EQ(pair.accepting.open(second), kText);
}

TEST(SessionCipher, EachConnectionHasItsOwnKeys) {
  Pair pair;
  EXPECT_THROW(Pair{}.accepting.open(pair.connecting.seal(kText)), Error);
  EXPECT_THROW(EphemeralKey{}.agree(HandshakeSide::connecting, PublicKey{}), Error);  // of small order
}

}  // namespace
}  // namespace ddp::launcher::control
