// Strangers are known by their first wrong byte, a proof is good for one connection only, and what both sides say leads
// to the same keys.
#include "stream/handshake.hpp"
#include "support/error_of.hpp"

namespace ddp::stream {
namespace {

constexpr Protocol kProtocol{.magic = "ddptest\n", .version = 0x01020304, .name = "a protocol", .listener = "server"};

Greeting some_greeting() { return {.version = kProtocol.version, .key = EphemeralKey{}.public_key()}; }

TEST(Greeting, ComesBackAsItWasAndNotBeforeItIsWhole) {
  const Greeting greeting = some_greeting();
  const Bytes bytes = encode(kProtocol, greeting);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(parse_greeting(kProtocol, std::span{bytes}.first(size)), std::nullopt);
  }
  EXPECT_EQ(parse_greeting(kProtocol, bytes), greeting);
}

TEST(Greeting, EveryWrongByteOfTheBeginningIsNoticedAtOnce) {
  for (std::size_t i = 0; i < 8; ++i) {
    Bytes bytes = encode(kProtocol, some_greeting());
    bytes.at(i) ^= std::byte{1};
    EXPECT_EQ(parse_greeting(kProtocol, std::span{bytes}.first(i)), std::nullopt);
    EXPECT_THROW(parse_greeting(kProtocol, std::span{bytes}.first(i + 1)), Error);
  }
}

TEST(Announcement, ComesBackAsItWas) {
  for (const auto method :
       {ProofMethod::job_secret, ProofMethod::phrase, ProofMethod::munge, ProofMethod::key_file, ProofMethod::none}) {
    Announcement announcement{.method = method};
    announcement.salt.back() = 7;
    EXPECT_EQ(parse_announcement(encode(announcement)), announcement);
  }
  for (const int wrong : {0, 6, 255}) {
    Bytes bytes = encode(Announcement{});
    bytes.front() = static_cast<std::byte>(wrong);
    EXPECT_THROW(parse_announcement(bytes), Error);
  }
}

TEST(Statement, CoversTheSideAndAllThatWasSent) {
  const Bytes a = encode(kProtocol, some_greeting());
  const Bytes b = encode(kProtocol, some_greeting());
  const Statement statement = make_statement(HandshakeSide::connecting, a, b);
  EXPECT_EQ(make_statement(HandshakeSide::connecting, a, b), statement);
  EXPECT_NE(make_statement(HandshakeSide::accepting, a, b), statement);
  EXPECT_NE(make_statement(HandshakeSide::connecting, b, a), statement);
  EXPECT_NE(make_statement(HandshakeSide::connecting, a, encode(kProtocol, some_greeting())), statement);
}

TEST(Proof, IsForOneSecretAndOneStatement) {
  const auto prover = job_secret_prover(Secret::random());
  const Statement statement = make_statement(HandshakeSide::connecting, {}, {});
  const Statement other = make_statement(HandshakeSide::accepting, {}, {});
  const Bytes proof = prover->prove(statement);
  EXPECT_NO_THROW(prover->check(proof, statement));
  EXPECT_THROW(prover->check(proof, other), Error);
  EXPECT_THROW(job_secret_prover(Secret::random())->check(proof, statement), Error);
  EXPECT_THROW(prover->check({}, statement), Error);
  EXPECT_THROW(prover->check(std::span{proof}.first(proof.size() - 1), statement), Error);
  for (std::size_t i = 0; i < proof.size(); ++i) {
    Bytes wrong = proof;
    wrong.at(i) ^= std::byte{0x80};
    EXPECT_THROW(prover->check(wrong, statement), Error);
  }
}

TEST(Proof, HasItsLengthInFront) {
  const Bytes proof(300, std::byte{5});
  const Bytes bytes = with_length(proof);
  EXPECT_EQ(bytes.size(), 302U);
  EXPECT_EQ(proof_length(bytes), 300U);
  EXPECT_EQ(proof_length(with_length(Bytes(kMaxProofBytes))), kMaxProofBytes);
  EXPECT_THROW(proof_length(with_length(Bytes(kMaxProofBytes + 1))), Error);
}

/// Passes on what each says to the other, byte by byte, until neither has anything to say. Throws Error of the side
/// that does not believe.
void talk(Handshake& connecting, Handshake& accepting) {
  for (bool said = true; said;) {
    said = false;
    for (auto [from, to] : {std::pair{&connecting, &accepting}, std::pair{&accepting, &connecting}}) {
      for (const std::byte byte : from->answer()) {
        said = true;
        ASSERT_GE(to->due(), 1U);
        to->take({&byte, 1});
      }
    }
  }
  accepting.due();  // throws for a proof that does not hold
}

ProverOf proving(const Secret& secret) {
  return [prover = job_secret_prover(secret)](std::span<const std::byte>) { return prover; };
}

TEST(Handshake, LeadsToTheSameKeys) {
  const Secret secret = Secret::random();
  for (const bool accepting_first : {false, true}) {
    Protocol protocol = kProtocol;
    protocol.accepting_first = accepting_first;
    protocol.opening_bytes = 3;
    const Bytes opening(3, std::byte{9});
    Handshake connecting(protocol, opening, job_secret_provers(secret));
    Handshake accepting(protocol, proving(secret));
    EXPECT_FALSE(accepting.believed());
    talk(connecting, accepting);
    EXPECT_TRUE(connecting.proven() && accepting.proven() && accepting.believed());
    EXPECT_TRUE(std::ranges::equal(accepting.opening(), opening));
    const Bytes text(10, std::byte{'x'});
    EXPECT_EQ(accepting.take_cipher().open(connecting.take_cipher().seal(text)), text);
    EXPECT_THROW((void)connecting.take_cipher(), std::logic_error);
  }
}

TEST(Handshake, AVerdictWithoutAProofOfItsOwnIsARefusal) {
  Handshake accepting(kProtocol, proving(Secret::random()));
  accepting.conclude({});
  EXPECT_FALSE(accepting.proven());
  EXPECT_THROW((void)accepting.take_cipher(), std::logic_error);
}

TEST(Handshake, WithoutTheSecretNobodyIsBelieved) {
  for (const bool accepting_first : {false, true}) {
    Protocol protocol = kProtocol;
    protocol.accepting_first = accepting_first;
    Handshake connecting(protocol, {}, job_secret_provers(Secret::random()));
    Handshake accepting(protocol, proving(Secret::random()));
    const Error error = test::thrown_by([&] { talk(connecting, accepting); });
    EXPECT_EQ(error.code(), ErrorCode::conflict);
    EXPECT_FALSE(connecting.proven() || accepting.proven());
    EXPECT_EQ(connecting.stage(), accepting_first ? Handshake::Stage::proof : Handshake::Stage::proof_length);
  }
}

TEST(Handshake, AnotherVersionIsNamedByBoth) {
  Protocol newer = kProtocol;
  ++newer.version;
  Handshake connecting(newer, {}, job_secret_provers(Secret::random()));
  Handshake accepting(kProtocol, proving(Secret::random()));
  const Bytes greeting = connecting.answer();
  accepting.take(greeting);
  const Bytes answer = accepting.answer();
  EXPECT_EQ(answer.size(), kGreetingBytes);
  EXPECT_THROW(accepting.due(), Error);
  connecting.take(answer);
  const Error error = test::thrown_by([&] { connecting.due(); });
  EXPECT_NE(error.cause().find("version 16909060 of a protocol; this is version 16909061"), std::string::npos);
}

TEST(Handshake, WhoEchoesIsNotBelieved) {
  Handshake connecting(kProtocol, {}, job_secret_provers(Secret::random()));
  const Bytes greeting = connecting.answer();
  EXPECT_THROW(connecting.take(greeting), Error);
}

TEST(Handshake, AnotherSecretsMethodIsAConflict) {
  const Secret secret = Secret::random();
  const auto other = std::make_shared<SecretProver>(Announcement{.method = ProofMethod::none}, secret, "version", "");
  Handshake connecting(kProtocol, {}, job_secret_provers(secret));
  Handshake accepting(kProtocol, [&](std::span<const std::byte>) { return other; });
  EXPECT_THROW(talk(connecting, accepting), Error);
}

}  // namespace
}  // namespace ddp::stream
