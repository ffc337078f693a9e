// Proofs between two ranks: who lacks a secret, replays, reflects or comes from another mesh proves nothing.
#include "collectives/tcp/handshake.hpp"
#include "base/message.hpp"
#include "support/error_of.hpp"

#include <ddp/error.hpp>

namespace ddp::collectives::tcp {
namespace {

struct TcpHandshake : ::testing::Test {
  TcpHandshake() {
    for (int rank = 0; rank < 3; ++rank) records_.push_back(record(random_key()));
  }
  static Bytes record(const Key& secret) {
    return base::encode(RankRecord{.address = "127.0.0.1", .port = 4711, .secret = secret});
  }
  /// Passes on what one side says to the other, until neither has anything to say. Throws Error of the side that does
  /// not believe.
  static void talk(stream::Handshake& connecting, stream::Handshake& accepting) {
    for (bool said = true; said;) {
      said = false;
      for (auto [from, to] : {std::pair{&connecting, &accepting}, std::pair{&accepting, &connecting}}) {
        const Bytes bytes = from->answer();
        said = said || !bytes.empty();
        for (std::span<const std::byte> rest{bytes}; !rest.empty();) {
          const auto piece = rest.first(std::min(to->due(), rest.size()));
          ASSERT_FALSE(piece.empty());
          to->take(piece);
          rest = rest.subspan(piece.size());
        }
      }
    }
    accepting.due();  // throws for a proof that does not hold
  }

  std::vector<Bytes> records_;
};

TEST_F(TcpHandshake, RanksOfAMeshProveThemselves) {
  const MeshIdentity zero(0, records_);
  const MeshIdentity two(2, records_);
  for (const auto& [from, to] : {std::pair{&zero, &two}, std::pair{&two, &zero}}) {
    const auto connecting = from->connect(to->rank());
    const auto accepting = to->accept();
    talk(*connecting, *accepting);
    EXPECT_TRUE(connecting->proven());
    EXPECT_TRUE(accepting->proven());
    EXPECT_EQ(base::decode<Opening>(accepting->opening()).from, static_cast<std::uint32_t>(from->rank()));
  }
}

/// A proof is of one side, one connection, one pair and one mesh.
TEST_F(TcpHandshake, WhoLacksASecretProvesNothing) {
  const MeshIdentity mesh(2, records_);
  for (std::size_t guessed = 0; guessed < 3; ++guessed) {
    std::vector<Bytes> records = records_;
    records[guessed] = record(random_key());
    const MeshIdentity impostor(0, records);
    EXPECT_THROW(talk(*impostor.connect(2), *mesh.accept()), Error) << guessed;  // rank 1's: another mesh
    EXPECT_THROW(talk(*mesh.connect(0), *impostor.accept()), Error) << guessed;
  }
}

TEST_F(TcpHandshake, WhoAnswersWithWhatItHearsProvesNothing) {
  const MeshIdentity zero(0, records_);
  const MeshIdentity two(2, records_);
  const auto connecting = zero.connect(2);
  const auto other = two.connect(0);
  talk(*connecting, *other);  // a greeting, with no announcement behind it
  EXPECT_FALSE(connecting->proven());
  EXPECT_FALSE(other->proven());
  const auto accepting = two.accept();
  const Bytes greeting = zero.connect(2)->answer();
  accepting->take(std::span{greeting}.first(accepting->due()));
  accepting->take(std::span{greeting}.last(kProtocol.opening_bytes));
  const Bytes challenge = accepting->answer();
  accepting->take(std::span{challenge}.last(stream::kProofHeaderBytes + 32).first(accepting->due()));
  accepting->take(std::span{challenge}.last(32));
  EXPECT_THROW(accepting->due(), Error);
  EXPECT_FALSE(accepting->proven());
}

TEST_F(TcpHandshake, WhoLooksForAnotherRankIsRefused) {
  const MeshIdentity one(1, records_);
  const MeshIdentity two(2, records_);
  EXPECT_THROW(talk(*two.connect(0), *one.accept()), Error);
  EXPECT_THROW(talk(*one.connect(1), *one.accept()), Error);
}

TEST_F(TcpHandshake, RecordsAreReadAsTheyWereWritten) {
  const RankRecord record{.address = "fe80::1%eth0", .port = 65535, .secret = random_key()};
  EXPECT_EQ(base::decode<RankRecord>(base::encode(record)), record);
}

TEST_F(TcpHandshake, ABadRecordNamesItsRank) {
  records_[1].pop_back();
  const Error error = ddp::test::thrown_by([&] { const MeshIdentity mesh(0, records_); });
  EXPECT_EQ(error.code(), ErrorCode::protocol);
  EXPECT_EQ(error.ranks(), std::vector<int>{1});
  EXPECT_THROW(base::decode<RankRecord>(base::encode(RankRecord{.address = "::1", .port = 0})), Error);
  EXPECT_THROW(base::decode<RankRecord>(base::encode(RankRecord{.address = std::string(65, '1'), .port = 1})), Error);
}

}  // namespace
}  // namespace ddp::collectives::tcp
