// What a store and its witnesses say to each other. A witness is a process of the job's user on another node: the store
// asks it whose a connection from that node is. Both prove first that they know the store's key, for which random
// numbers of both sides are hashed with it; so are all later messages, which neither side can thus take for others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store_server/peer_address.hpp"
#include "store_server/socket_owner.hpp"
#include "store_server/store_key.hpp"

namespace ddp::store_server {

/// The first byte of a witness, far above the operation numbers with which c10d requests begin.
inline constexpr std::uint8_t kWitnessByte = 0xDD;
inline constexpr std::uint8_t kWitnessVersion = 2;

using Nonce = std::array<std::uint8_t, 32>;
inline constexpr std::size_t kProofBytes = 32;

/// What a witness says of itself.
struct Statement {
  /// Tells hosts, and network namespaces of one host, apart.
  std::array<std::uint8_t, 32> host{};
  Endpoint own;                        ///< of this connection, as the witness sees it
  std::vector<PeerAddress> addresses;  ///< of its host; own's is among them
};
inline constexpr std::size_t kMostAddresses = 64;

/// What becomes of a witness.
enum class Role : std::uint8_t {
  resident = 1,    ///< it answers questions until the store ends
  redundant = 2,   ///< its host has another one
  local = 3,       ///< it is on the store's host, where the store looks itself
  translated = 4,  ///< its connection comes from another address than it says: so would all of its host
};

struct Welcome {
  Role role = Role::resident;
  Endpoint seen;  ///< where the connection comes from, as the store sees it
};

/// Whose is the connection from source, an end on the witness's host, to destination?
struct Question {
  std::uint64_t id = 0;
  Endpoint source;
  Endpoint destination;
};

struct Answer {
  std::uint64_t id = 0;
  SocketOwner owner{};
};

/// Whom a message is from, and which.
enum class WitnessMessage : std::uint8_t { hello, challenge, statement, welcome, question, answer };

/// Bytes of a message. For a statement, as far as @p begun tells: it says after 35 bytes how many follow.
std::size_t message_bytes(WitnessMessage message, std::string_view begun = {});
inline constexpr std::size_t kHelloBytes = 2 + sizeof(Nonce);
inline constexpr std::size_t kLongestMessage = 35 + kMostAddresses * 16 + kProofBytes;

/// Not proven: byte, version, nonce.
std::string hello_message(const Nonce& witness);
/// Empty for another protocol or version.
std::optional<Nonce> parse_hello(std::string_view message);

/// Writes and reads the proven messages of one connection.
class WitnessSeal {
 public:
  WitnessSeal(const StoreKey& key, const Nonce& witness, const Nonce& store)
      : key_(key), witness_(witness), store_(store) {}

  std::string challenge() const;  ///< the store's nonce
  std::string statement(const Statement& statement) const;
  std::string welcome(const Welcome& welcome) const;
  std::string question(const Question& question) const;
  std::string answer(const Answer& answer) const;

  // Empty when the proof is wrong, or what it proves is malformed.
  bool proves_challenge(std::string_view message) const;
  std::optional<Statement> read_statement(std::string_view message) const;
  std::optional<Welcome> read_welcome(std::string_view message) const;
  std::optional<Question> read_question(std::string_view message) const;
  std::optional<Answer> read_answer(std::string_view message) const;

 private:
  std::string seal(WitnessMessage kind, std::string body) const;
  std::optional<std::string_view> open(WitnessMessage kind, std::string_view message) const;
  std::string proven_text(WitnessMessage kind, std::string_view body) const;

  StoreKey key_;
  Nonce witness_;
  Nonce store_;
};

/// The store's nonce in a challenge.
Nonce challenge_nonce(std::string_view message);

}  // namespace ddp::store_server
