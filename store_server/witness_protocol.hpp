// What a store and its witnesses say to each other. A witness is a process of the job's user on another node: the store
// asks it whose a connection from that node is. Both prove first that they know the store's key; what follows is
// sealed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/message.hpp"
#include "store_server/peer_address.hpp"
#include "store_server/socket_owner.hpp"
#include "store_server/store_key.hpp"
#include "stream/framing.hpp"
#include "stream/handshake.hpp"

namespace ddp::store_server {

/// The first byte of a witness, far above the operation numbers with which c10d requests begin.
inline constexpr std::uint8_t kWitnessByte = 0xDD;

inline constexpr stream::Protocol kWitnessProtocol{.magic =
                                                       "\xDD"
                                                       "ddpwit\n",
                                                   .version = 3,
                                                   .name = "the protocol of a store's witnesses",
                                                   .listener = "store of a job",
                                                   .accepting_first = true};

/// What a witness says of itself.
struct Statement {
  /// Tells hosts, and network namespaces of one host, apart.
  std::array<std::uint8_t, 32> host{};
  Endpoint own = {};                        ///< of this connection, as the witness sees it
  std::vector<PeerAddress> addresses = {};  ///< of its host; own's is among them
};
inline constexpr std::size_t kMostAddresses = 64;

/// What becomes of a witness.
enum class Role : std::uint8_t {
  resident,    ///< it answers questions until the store ends
  redundant,   ///< its host has another one
  local,       ///< it is on the store's host, where the store looks itself
  translated,  ///< its connection comes from another address than it says: so would all of its host
};

struct Welcome {
  Role role = Role::resident;
  Endpoint seen = {};  ///< where the connection comes from, as the store sees it
};

/// Whose is the connection from source, an end on the witness's host, to destination?
struct Question {
  std::uint64_t id = 0;
  Endpoint source = {};
  Endpoint destination = {};
};

struct Answer {
  std::uint64_t id = 0;
  SocketOwner owner = {};
};

// ---- descriptions

inline void write_value(base::ByteWriter& out, const PeerAddress& address) {
  out.raw(std::as_bytes(std::span{address.bytes()}));
}
inline void read_value(base::ByteReader& in, PeerAddress& address) {
  PeerAddress::Bytes bytes{};
  const auto raw = in.raw(bytes.size());
  std::transform(raw.begin(), raw.end(), bytes.begin(), std::to_integer<std::uint8_t>);
  address = PeerAddress{bytes};
}
constexpr auto description(const Endpoint*) {
  return base::describe({.name = "endpoint", .unsent = 1}, base::fields<&Endpoint::address, &Endpoint::port>());
}
constexpr auto description(const SocketOwner*) {
  return base::describe({"owner of a connection"},
                        base::fields<&SocketOwner::kind>(base::kUpTo<SocketOwner::Kind::unknowable>),
                        base::fields<&SocketOwner::uid>());
}
constexpr auto description(const Statement*) {
  return base::describe({"statement of a witness"}, base::fields<&Statement::host>(), base::fields<&Statement::own>(),
                        base::fields<&Statement::addresses>(base::Rule{.fewest = 1, .count = kMostAddresses}));
}
constexpr auto description(const Welcome*) {
  return base::describe({"welcome of a witness"}, base::fields<&Welcome::role>(base::kUpTo<Role::translated>),
                        base::fields<&Welcome::seen>());
}
constexpr auto description(const Question*) {
  return base::describe({"question to a witness"}, base::fields<&Question::id>(), base::fields<&Question::source>(),
                        base::fields<&Question::destination>());
}
constexpr auto description(const Answer*) {
  return base::describe({"answer of a witness"}, base::fields<&Answer::id>(), base::fields<&Answer::owner>());
}

/// Of any of these.
inline constexpr std::size_t kMostWitnessBytes = 2048;

/// The store's side of what proves the key, and the witness's.
inline std::unique_ptr<stream::Handshake> accept_witness(const StoreKey& key) {
  const auto prover = stream::job_secret_prover(stream::Secret::of(key.bytes()));
  return std::make_unique<stream::Handshake>(kWitnessProtocol, [prover](std::span<const std::byte>) { return prover; });
}

/// A witness's end of its connection: proves the key, then waits for one message after the other. Throws Error:
/// conflict where the other side does not know the key, as base::receive_exactly(), protocol.
class WitnessEnd {
 public:
  WitnessEnd(int socket, const StoreKey& key, Deadline deadline, const std::string& attempted);

  template <class Message>
  void send(const Message& message, Deadline deadline) {
    send_bytes(base::encode(message), deadline);
  }
  template <class Message>
  Message receive(Deadline deadline) {
    return base::decode<Message>(receive_bytes(deadline));
  }
  /// The next message, of what has come; nothing while it is not whole. Throws peer_lost when the store has ended.
  std::optional<Bytes> next();

 private:
  void send_bytes(const Bytes& message, Deadline deadline);
  Bytes receive_bytes(Deadline deadline);

  int socket_;
  std::string attempted_;
  std::optional<stream::SealedMessages> messages_;
};

// The witnesses that a store has, by the addresses of their hosts; and what it has asked them.

/// Witnesses and clients are named by descriptors, questions by the client's serial number.
class WitnessDirectory {
 public:
  bool has_host(const Statement& statement) const { return hosts_.contains(statement.host); }
  void add(int witness, const Statement& statement);

  /// Whose host has this address. Several, for one that hosts have alike (that of a bridge for containers).
  std::vector<int> at(const PeerAddress& address) const;

  /// @p witnesses are asked about this client.
  void asked(std::uint64_t serial, int client, const std::vector<int>& witnesses);
  /// @p witness has answered. @return the client, unless that is not what it was asked
  std::optional<int> answered(int witness, std::uint64_t serial);
  /// No witness is left that could still answer.
  bool all_answered(std::uint64_t serial) const { return !questions_.contains(serial); }
  /// The client is served, or gone.
  void settled(std::uint64_t serial) { questions_.erase(serial); }

  /// The witness is gone. @return the clients about which nobody is left to answer
  std::vector<int> remove(int witness);

 private:
  struct Open {
    int client;
    std::set<int> witnesses;  ///< that have not answered
  };

  std::multimap<PeerAddress, int> by_address_;
  std::map<std::array<std::uint8_t, 32>, int> hosts_;
  std::map<std::uint64_t, Open> questions_;
};

}  // namespace ddp::store_server
