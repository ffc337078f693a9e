// Proofs between two ranks: who lacks a secret, replays, reflects or comes from another mesh proves nothing.
#include "collectives/tcp/handshake.hpp"

#include <gtest/gtest.h>

#include <ddp/error.hpp>

namespace ddp::collectives::tcp {
namespace {

class TcpHandshake : public ::testing::Test {
 protected:
  TcpHandshake() {
    prepare_proofs();
    for (int rank = 0; rank < 3; ++rank) records_.push_back(record(random_key()));
  }
  static Bytes record(const Key& secret) {
    return encode(RankRecord{.address = "127.0.0.1", .port = 4711, .secret = secret});
  }

  std::vector<Bytes> records_;
  Hello hello_{.from = 0, .to = 2, .nonce = random_key()};
  Nonce nonce_ = random_key();
};

TEST_F(TcpHandshake, RanksOfAMeshProveThemselves) {
  const MeshIdentity zero(0, records_);
  const MeshIdentity two(2, records_);
  EXPECT_TRUE(zero.proves(two.prove(Side::accepting, hello_, nonce_), Side::accepting, hello_, nonce_));
  EXPECT_TRUE(two.proves(zero.prove(Side::connecting, hello_, nonce_), Side::connecting, hello_, nonce_));
}

TEST_F(TcpHandshake, AProofIsOfOneSideOneConnectionAndOnePair) {
  const MeshIdentity mesh(2, records_);
  const Proof proof = mesh.prove(Side::connecting, hello_, nonce_);
  EXPECT_FALSE(mesh.proves(proof, Side::accepting, hello_, nonce_)) << "reflected";
  EXPECT_FALSE(mesh.proves(proof, Side::connecting, hello_, random_key())) << "replayed";
  EXPECT_FALSE(mesh.proves(std::span(proof).first(31), Side::connecting, hello_, nonce_));
  Hello other = hello_;
  other.nonce = random_key();
  EXPECT_FALSE(mesh.proves(proof, Side::connecting, other, nonce_));
  other = hello_;
  other.from = 1;
  EXPECT_FALSE(mesh.proves(proof, Side::connecting, other, nonce_)) << "another rank's name";
}

TEST_F(TcpHandshake, WhoLacksASecretProvesNothing) {
  const MeshIdentity mesh(2, records_);
  for (std::size_t guessed = 0; guessed < 3; ++guessed) {
    std::vector<Bytes> records = records_;
    records[guessed] = record(random_key());
    const MeshIdentity impostor(0, records);
    const Proof proof = impostor.prove(Side::connecting, hello_, nonce_);
    EXPECT_FALSE(mesh.proves(proof, Side::connecting, hello_, nonce_)) << guessed;  // rank 1's: another mesh
  }
}

TEST_F(TcpHandshake, HellosAndRecordsAreReadAsTheyWereWritten) {
  EXPECT_EQ(parse_hello(encode(hello_)), hello_);
  for (const std::size_t at : {0U, 7U}) {
    HelloBytes bytes = encode(hello_);
    bytes[at] ^= std::byte{1};
    EXPECT_FALSE(parse_hello(bytes));
  }
  const RankRecord record{.address = "fe80::1%eth0", .port = 65535, .secret = random_key()};
  EXPECT_EQ(decode_rank_record(encode(record)), record);
}

TEST_F(TcpHandshake, ABadRecordNamesItsRank) {
  records_[1].pop_back();
  try {
    const MeshIdentity mesh(0, records_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    EXPECT_EQ(error.ranks(), std::vector<int>{1});
  }
  EXPECT_THROW(decode_rank_record(encode(RankRecord{.address = "::1", .port = 0})), Error);
  EXPECT_THROW(decode_rank_record(encode(RankRecord{.address = std::string(65, '1'), .port = 1})), Error);
}

}  // namespace
}  // namespace ddp::collectives::tcp
