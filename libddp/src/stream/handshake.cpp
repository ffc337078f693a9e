#include "stream/handshake.hpp"

#include <sodium.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace ddp::stream {
namespace {

static_assert(std::tuple_size_v<Statement> == crypto_generichash_BYTES);

const unsigned char* unsigned_of(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

void append(Bytes& to, std::span<const std::byte> bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

Error failure(ErrorCode code, std::string attempted, std::string cause, std::string hint = {}) {
  return Error{{.code = code, .attempted = std::move(attempted), .cause = std::move(cause), .hint = std::move(hint)}};
}

}  // namespace

// ---- messages

Bytes encode(const Protocol& protocol, const Greeting& greeting) {
  Bytes bytes;
  append(bytes, std::as_bytes(std::span{protocol.magic}));
  for (const unsigned shift : {24U, 16U, 8U, 0U}) bytes.push_back(static_cast<std::byte>(greeting.version >> shift));
  append(bytes, std::as_bytes(std::span{greeting.key}));
  return bytes;
}

std::optional<Greeting> parse_greeting(const Protocol& protocol, std::span<const std::byte> received) {
  const auto magic = std::as_bytes(std::span{protocol.magic});
  const auto begin = received.first(std::min(received.size(), magic.size()));
  if (!std::equal(begin.begin(), begin.end(), magic.begin()))
    throw failure(ErrorCode::protocol, "reading a greeting", fmt::format("it does not speak {}", protocol.name));
  if (received.size() < kGreetingBytes) return std::nullopt;
  Greeting greeting;
  for (const std::byte byte : received.subspan(magic.size(), 4))
    greeting.version = greeting.version << 8U | std::to_integer<std::uint32_t>(byte);
  const auto key = received.subspan(magic.size() + 4, greeting.key.size());
  std::transform(key.begin(), key.end(), greeting.key.begin(), std::to_integer<std::uint8_t>);
  return greeting;
}

Bytes encode(const Announcement& announcement) {
  Bytes bytes{static_cast<std::byte>(announcement.method)};
  append(bytes, std::as_bytes(std::span{announcement.salt}));
  return bytes;
}

Announcement parse_announcement(std::span<const std::byte> bytes) {
  const auto method = std::to_integer<std::uint8_t>(bytes.front());
  if (method < static_cast<std::uint8_t>(ProofMethod::job_secret) ||
      method > static_cast<std::uint8_t>(ProofMethod::none)) {
    throw failure(ErrorCode::protocol, "agreeing on how to prove identity",
                  fmt::format("there is no method {}", method));
  }
  Announcement announcement{.method = static_cast<ProofMethod>(method)};
  const auto salt = bytes.subspan(1, announcement.salt.size());
  std::transform(salt.begin(), salt.end(), announcement.salt.begin(), std::to_integer<std::uint8_t>);
  return announcement;
}

Statement make_statement(HandshakeSide prover, std::span<const std::byte> connecting,
                         std::span<const std::byte> accepting) {
  const std::string_view name = prover == HandshakeSide::accepting ? "the accepting side" : "the connecting side";
  Bytes text{connecting.begin(), connecting.end()};
  append(text, accepting);
  append(text, std::as_bytes(std::span{name}));
  Statement statement{};
  ::crypto_generichash(reinterpret_cast<unsigned char*>(statement.data()), statement.size(), unsigned_of(text.data()),
                       text.size(), nullptr, 0);
  return statement;
}

Bytes with_length(std::span<const std::byte> proof) {
  Bytes bytes{static_cast<std::byte>(proof.size() >> 8U), static_cast<std::byte>(proof.size())};
  append(bytes, proof);
  return bytes;
}

std::size_t proof_length(std::span<const std::byte> received) {
  const std::size_t length =
      std::to_integer<std::size_t>(received[0]) << 8U | std::to_integer<std::size_t>(received[1]);
  if (length <= kMaxProofBytes) return length;
  throw failure(ErrorCode::protocol, "reading a proof",
                fmt::format("its length is given as {} bytes; at most {} are allowed", length, kMaxProofBytes));
}

// ---- proofs

Bytes SecretProver::prove(const Statement& statement) {
  Bytes proof(crypto_auth_BYTES);
  ::crypto_auth(reinterpret_cast<unsigned char*>(proof.data()), unsigned_of(statement.data()), statement.size(),
                secret_.bytes().data());
  return proof;
}

void SecretProver::check(std::span<const std::byte> proof, const Statement& statement) {
  if (proof.size() == crypto_auth_BYTES &&
      ::crypto_auth_verify(unsigned_of(proof.data()), unsigned_of(statement.data()), statement.size(),
                           secret_.bytes().data()) == 0)
    return;
  throw failure(ErrorCode::conflict, "checking who is at the other end", "it does not know the job's " + name_, hint_);
}

std::shared_ptr<Prover> job_secret_prover(const Secret& secret) {
  return std::make_shared<SecretProver>(Announcement{}, secret, "secret", "is it another job's port?");
}

Provers job_secret_provers(const Secret& secret) {
  return [prover = job_secret_prover(secret)](const Announcement& announcement) {
    if (announcement.method == ProofMethod::job_secret) return prover;
    throw failure(ErrorCode::conflict, "proving that this process belongs to the job",
                  "the other side does not ask for the job's secret", prover->hint());
  };
}

ProofVerdict judge(const ProofCheck& check) {
  try {
    check.prover->check(check.proof, check.theirs);
    return {.own_proof = check.prover->prove(check.ours)};
  } catch (const Error& error) {
    const std::string native = error.native().empty() ? "" : fmt::format(" [{}]", error.native());
    const std::string hint = error.hint().empty() ? "" : fmt::format("; {}", error.hint());
    return {.refusal = error.cause() + native + hint};
  }
}

// ---- one side of a handshake

Handshake::Handshake(const Protocol& protocol, Bytes opening, Provers provers)
    : protocol_(protocol),
      side_(HandshakeSide::connecting),
      provers_(std::move(provers)),
      opening_(std::move(opening)) {
  greet();
}

Handshake::Handshake(const Protocol& protocol, ProverOf prover)
    : protocol_(protocol), side_(HandshakeSide::accepting), prover_of_(std::move(prover)) {}

/// Delayed until it is due: making a key takes a while.
void Handshake::greet() {
  if (protocol_.sealed) key_.emplace();
  ours_ = {.version = protocol_.version, .key = key_ ? key_->public_key() : random_bytes()};
  answer_ = encode(protocol_, ours_);
  if (side_ == HandshakeSide::connecting) append(answer_, opening_);
  (side_ == HandshakeSide::connecting ? connecting_said_ : accepting_said_) = answer_;
}

Bytes Handshake::answer() { return std::exchange(answer_, {}); }

std::size_t Handshake::due() const {
  if (refusal_) throw *refusal_;
  const bool accepting = side_ == HandshakeSide::accepting;
  switch (stage_) {
    case Stage::greeting: return kGreetingBytes - received_.size();
    case Stage::details: return (accepting ? protocol_.opening_bytes : kAnnouncementBytes) - received_.size();
    case Stage::proof_length: return kProofHeaderBytes - received_.size();
    case Stage::proof: return kProofHeaderBytes + stream::proof_length(received_) - received_.size();
    default: return 0;
  }
}

void Handshake::take(std::span<const std::byte> bytes) {
  append(received_, bytes);
  // An empty proof is complete with its length.
  for (bool whole = true; whole && stage_ < Stage::verdict && !refusal_;) {
    const Stage before = stage_;
    if (stage_ == Stage::greeting) {
      take_greeting();
    } else if (due() == 0) {
      if (stage_ == Stage::details) {
        take_details();
      } else if (stage_ == Stage::proof_length) {
        stage_ = Stage::proof;
      } else {
        take_proof();
      }
    }
    whole = stage_ != before;
  }
}

void Handshake::take_greeting() {
  const bool accepting = side_ == HandshakeSide::accepting;
  std::optional<Greeting> greeting;
  try {
    greeting = parse_greeting(protocol_, received_);
  } catch (const Error& error) {
    if (accepting) throw;
    throw failure(error.code(), error.attempted(),
                  fmt::format("it is not a {}: {}", protocol_.listener, error.cause()));
  }
  if (!greeting) return;
  theirs_ = *greeting;
  (accepting ? connecting_said_ : accepting_said_) = std::exchange(received_, {});
  if (accepting) greet();
  if (theirs_.version != protocol_.version) {
    // on the accepting side: once it has named its own
    refusal_ = failure(ErrorCode::protocol, "reading a greeting",
                       fmt::format("it speaks version {} of {}; this is version {}", theirs_.version, protocol_.name,
                                   protocol_.version));
    return;
  }
  if (!accepting && theirs_.key == ours_.key) {
    throw failure(ErrorCode::protocol, "reading a greeting",
                  fmt::format("it is not a {}: it echoes what it receives", protocol_.listener));
  }
  stage_ = Stage::details;
}

void Handshake::take_details() {
  if (side_ == HandshakeSide::accepting) {
    append(connecting_said_, received_);
    opening_ = std::exchange(received_, {});
    prover_ = prover_of_(opening_);
    const Bytes announcement = encode(prover_->announcement());
    append(answer_, announcement);
    append(accepting_said_, announcement);
    if (protocol_.accepting_first) append(answer_, with_length(prover_->prove(statement(side_))));
  } else {
    append(accepting_said_, received_);
    prover_ = provers_(parse_announcement(std::exchange(received_, {})));
    if (!protocol_.accepting_first) answer_ = with_length(prover_->prove(statement(side_)));
  }
  stage_ = Stage::proof_length;
}

void Handshake::take_proof() {
  const auto proof = std::span{received_}.subspan(kProofHeaderBytes);
  if (side_ == HandshakeSide::connecting) {
    prover_->check(proof, statement(HandshakeSide::accepting));
    if (protocol_.accepting_first) answer_ = with_length(prover_->prove(statement(side_)));
    stage_ = Stage::done;
    return;
  }
  stage_ = Stage::verdict;
  if (!prover_->slow()) conclude(judge(check()));
}

Statement Handshake::statement(HandshakeSide side) const {
  return make_statement(side, connecting_said_, accepting_said_);
}

ProofCheck Handshake::check() const {
  return {.prover = prover_,
          .proof = {received_.begin() + kProofHeaderBytes, received_.end()},
          .theirs = statement(HandshakeSide::connecting),
          .ours = statement(HandshakeSide::accepting)};
}

void Handshake::conclude(ProofVerdict verdict) {
  if (verdict.own_proof) {
    if (!protocol_.accepting_first) answer_ = with_length(*verdict.own_proof);
    stage_ = Stage::done;
    return;
  }
  refused_proof_ = verdict.refusal;
  refusal_ = failure(ErrorCode::conflict, "checking who is at the other end", std::move(verdict.refusal));
}

SessionCipher Handshake::take_cipher() {
  if (!proven() || !key_) throw std::logic_error("a connection's cipher is taken twice, or before its proof");
  return std::exchange(key_, std::nullopt)->agree(side_, theirs_.key);
}

}  // namespace ddp::stream
