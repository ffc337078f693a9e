// The job's secret is read as it was written, and a wrong one is never shown. Two sides that agree on keys understand
// each other, in order, and nobody else does.
#include <ddp/error.hpp>

#include "stream/secret.hpp"
#include "support/error_of.hpp"

namespace ddp::stream {
namespace {

TEST(Secret, IsWrittenAndReadAsHex) {
  const Secret secret = Secret::random();
  const std::string hex = secret.to_hex();
  EXPECT_EQ(hex.size(), 64U);
  EXPECT_TRUE(std::ranges::equal(Secret::from_hex(hex).bytes(), secret.bytes()));
  EXPECT_NE(Secret::random().to_hex(), hex);
  EXPECT_EQ(Secret::from_hex(std::string(64, 'A')).to_hex(), std::string(64, 'a'));
}

TEST(Secret, WrongHexIsRefusedAndNotRepeated) {
  const std::string good(64, 'a');
  for (const std::string& wrong :
       {std::string{}, good.substr(1), good + "a", good.substr(1) + "g", good.substr(1) + " ",
        good.substr(2) + std::string(2, '\0'), "0x" + good.substr(2), good + good}) {
    const auto error = test::error_of([&] { Secret::from_hex(wrong); });
    ASSERT_TRUE(error) << wrong;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string(error->what()).find("aaaa"), std::string::npos);
  }
}

TEST(Secret, OfAPhraseIsTheSameForTheSamePhraseAndSaltOnly) {
  const std::string secret = Secret::from_phrase("phrase", {1}).to_hex();
  EXPECT_EQ(Secret::from_phrase("phrase", {1}).to_hex(), secret);
  EXPECT_NE(Secret::from_phrase("phrases", {1}).to_hex(), secret);
  EXPECT_NE(Secret::from_phrase("phrase", {2}).to_hex(), secret);
}

TEST(Secret, OfAPhraseIsDearToGuess) {
  const auto begin = std::chrono::steady_clock::now();
  Secret::from_phrase("phrase", {});
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(10));
}

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
}  // namespace ddp::stream
