// How both ends of a connection prove to each other that they belong together, before anything else on it: strangers
// learn and can do nothing. Each sends a greeting with bytes made for this connection, the accepting one also how to
// prove; then each proves itself for all that was sent, as a rule the connecting side first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ddp/bytes.hpp>
#include <ddp/error.hpp>

#include "stream/admission.hpp"
#include "stream/secret.hpp"

namespace ddp::stream {

/// What distinguishes one use of the handshake from others.
struct Protocol {
  std::string_view magic;  ///< 8 bytes with which no other protocol begins
  std::uint32_t version = 0;
  std::string_view name;          ///< "ddprun's protocol"
  std::string_view listener;      ///< what accepts: "coordinator"
  std::size_t opening_bytes = 0;  ///< what the connecting side says of itself behind its greeting
  bool sealed = true;             ///< keys are agreed on
  /// So that the connecting side knows whom it has reached, though it is not believed itself. For secrets that cannot
  /// be guessed: who connects gets something to try guesses on.
  bool accepting_first = false;
};

/// On the wire: the magic, the protocol version as 32 bits in network byte order, the key. It is the same in all
/// versions of a protocol, so that each side can name the other's.
struct Greeting {
  std::uint32_t version = 0;
  PublicKey key{};

  bool operator==(const Greeting&) const = default;
};

inline constexpr std::size_t kGreetingBytes = 8 + 4 + 32;
Bytes encode(const Protocol& protocol, const Greeting& greeting);
/// Nothing while @p received is only the beginning of a greeting. Throws Error(protocol) for what cannot become one.
std::optional<Greeting> parse_greeting(const Protocol& protocol, std::span<const std::byte> received);

/// How both sides prove that they belong together.
enum class ProofMethod : std::uint8_t {
  job_secret = 1,  ///< a random secret that the job's own channels carry
  phrase = 2,      ///< DDP_RDZV_SECRET
  munge = 3,       ///< credentials of the same user
  key_file = 4,    ///< the user's key file
  none = 5,        ///< --rdzv-insecure
};

/// What the accepting side sends behind its greeting: the method as one byte, and a salt.
struct Announcement {
  ProofMethod method = ProofMethod::job_secret;
  Salt salt{};  ///< of the phrase, random

  bool operator==(const Announcement&) const = default;
};

inline constexpr std::size_t kAnnouncementBytes = 1 + 16;
Bytes encode(const Announcement& announcement);
/// @param bytes kAnnouncementBytes. Throws Error(protocol) for an unknown method.
Announcement parse_announcement(std::span<const std::byte> bytes);

/// All that a proof must cover, hashed (BLAKE2b): the side, so that a proof cannot be reflected to its sender, and what
/// both have sent, so that it is good for one connection and for the keys of it.
using Statement = std::array<std::byte, 32>;
Statement make_statement(HandshakeSide prover, std::span<const std::byte> connecting,
                         std::span<const std::byte> accepting);

/// A proof follows its length, 16 bits in network byte order. MUNGE credentials take some 200 bytes.
inline constexpr std::size_t kMaxProofBytes = 1024;
inline constexpr std::size_t kProofHeaderBytes = 2;
Bytes with_length(std::span<const std::byte> proof);
/// @param received at least the length. Throws Error(protocol) above kMaxProofBytes.
std::size_t proof_length(std::span<const std::byte> received);

/// Both sides of a connection use the same kind. prove() and check() may be called from one thread at a time.
class Prover {
 public:
  virtual ~Prover() = default;

  virtual Announcement announcement() const = 0;
  /// At most kMaxProofBytes. Throws Error.
  virtual Bytes prove(const Statement& statement) = 0;
  /// Throws Error(conflict) unless the other side has proven @p statement.
  virtual void check(std::span<const std::byte> proof, const Statement& statement) = 0;
  /// Whether they ask another process, and may take seconds.
  virtual bool slow() const { return false; }

  /// What the other side does not accept: "this node's DDP_RDZV_SECRET".
  virtual std::string what() const = 0;
  /// For the user whose nodes do not accept each other.
  virtual std::string hint() const = 0;
};

/// Of the connecting side, for what the other announces. Throws Error(conflict), with a hint, where this side cannot or
/// must not prove itself in this way.
using Provers = std::function<std::shared_ptr<Prover>(const Announcement& announcement)>;
/// Of the accepting side, for what the other has said of itself. Throws Error where it is not to be believed.
using ProverOf = std::function<std::shared_ptr<Prover>(std::span<const std::byte> opening)>;

/// Both sides know the same secret: HMAC-SHA-512-256 (libsodium's crypto_auth) of the statement.
class SecretProver : public Prover {
 public:
  /// @param name of the secret: "secret", "DDP_RDZV_SECRET"
  SecretProver(Announcement announcement, const Secret& secret, std::string name, std::string hint)
      : announcement_(announcement), secret_(secret), name_(std::move(name)), hint_(std::move(hint)) {}

  Announcement announcement() const override { return announcement_; }
  Bytes prove(const Statement& statement) override;
  /// Takes the same time for all wrong proofs.
  void check(std::span<const std::byte> proof, const Statement& statement) override;
  std::string what() const override { return "this node's " + name_; }
  std::string hint() const override { return hint_; }

 private:
  Announcement announcement_;
  Secret secret_;
  std::string name_;
  std::string hint_;
};

/// For processes that have got a job's random secret.
std::shared_ptr<Prover> job_secret_prover(const Secret& secret);
Provers job_secret_provers(const Secret& secret);

/// What the accepting side does with a proof: check it, and make its own.
struct ProofCheck {
  std::shared_ptr<Prover> prover;
  Bytes proof;
  Statement theirs{};
  Statement ours{};
};

struct ProofVerdict {
  std::optional<Bytes> own_proof = {};  ///< where theirs holds, and only there
  std::string refusal = {};             ///< else why not
};

/// Throws nothing that is an Error.
ProofVerdict judge(const ProofCheck& check);

/// One side of it. Whom a slow prover is to judge waits for conclude().
class Handshake final : public Conversation {
 public:
  /// What is to come next.
  enum class Stage : std::uint8_t { greeting, details, proof_length, proof, verdict, done };

  /// The connecting side's. @param protocol outlives the object, as what it refers to
  Handshake(const Protocol& protocol, Bytes opening, Provers provers);
  /// The accepting side's.
  Handshake(const Protocol& protocol, ProverOf prover);

  Bytes answer() override;
  std::size_t due() const override;
  void take(std::span<const std::byte> bytes) override;
  bool believed() const override { return stage_ > Stage::greeting; }
  bool proven() const override { return stage_ == Stage::done && answer_.empty(); }

  Stage stage() const { return stage_; }
  /// Once it is known.
  const Prover* prover() const { return prover_.get(); }
  /// What the other side has said of itself.
  std::span<const std::byte> opening() const { return opening_; }
  /// At Stage::verdict: for judge(), in any thread.
  ProofCheck check() const;
  void conclude(ProofVerdict verdict);
  /// Of the proof that has been refused; else empty.
  const std::string& refused_proof() const { return refused_proof_; }
  /// Once it is proven, and only once: a second cipher of the same keys would repeat its nonces. Else throws
  /// std::logic_error.
  SessionCipher take_cipher();

 private:
  void greet();
  void take_greeting();
  void take_details();
  void take_proof();
  Statement statement(HandshakeSide side) const;

  const Protocol& protocol_;
  const HandshakeSide side_;
  Provers provers_;
  ProverOf prover_of_;
  std::shared_ptr<Prover> prover_;
  std::optional<EphemeralKey> key_;
  Greeting ours_{};
  Greeting theirs_{};
  Bytes opening_;
  Bytes connecting_said_;
  Bytes accepting_said_;
  Bytes received_;
  Bytes answer_;
  std::optional<Error> refusal_;
  std::string refused_proof_;
  Stage stage_ = Stage::greeting;
};

}  // namespace ddp::stream
