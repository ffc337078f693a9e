// Whose a connection is: this host's kernel says it, or the witness of the host that it comes from.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/socket.hpp"
#include "store_server/store_server_impl.hpp"

namespace ddp::store_server {
namespace {

/// In bytes, of one witness: hundreds of questions.
constexpr std::size_t kMostUnreadQuestions = std::size_t{64} << 10U;

}  // namespace

bool StoreServer::Impl::is_own_host(const PeerAddress& peer) {
  return options.is_own_host ? options.is_own_host(peer) : own_addresses.contain(peer);
}

/// For a connection from this host; posts why not.
bool StoreServer::Impl::is_ours(int fd, const Endpoint& peer) {
  const auto own = Endpoint::own(fd);
  const SocketOwner owner = own ? owners.owner_of(peer, *own) : SocketOwner{};
  if (owner.kind == SocketOwner::Kind::ours) return is_established(fd);
  // one that is closed already is nobody's any more
  if (owner.kind != SocketOwner::Kind::none || is_established(fd))
    refusals.post(fmt::format("refused a connection from {}: {}", peer.text(), owner.reason()));
  return false;
}

void StoreServer::Impl::read_opening(Connection& connection) {
  std::uint8_t first = 0;
  const ssize_t count = ::recv(connection.fd.get(), &first, 1, MSG_PEEK);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (count <= 0) return drop(connection, "closed by the client");
  strangers.heard(connection.serial);
  if (first == kWitnessByte) {
    connection.stage = Stage::witness;
    connection.witness =
        std::make_unique<WitnessConversation>(WitnessConversation{.handshake = accept_witness(*options.key)});
    read_witness(connection);
  } else if (connection.admitted) {
    connection.stage = Stage::client;
    receive(connection);
  } else if (first == static_cast<std::uint8_t>(Operation::validate)) {
    ask_witnesses(connection);
  } else {
    drop(connection, "neither a client nor a witness");
  }
}

void StoreServer::Impl::ask_witnesses(Connection& client) {
  const std::vector<int> found = witnesses.at(client.peer.address);
  if (found.empty()) {
    return refuse(client,
                  "no node of the job has that address: is it another host, a container with a network of its own, or "
                  "translated on the way (NAT)?");
  }
  for (const int witness : found) {
    if (find(witness)->unread() > kMostUnreadQuestions)
      return refuse(client, "libddp's process on its host, which reports its owner, does not answer");
  }
  const auto own = Endpoint::own(client.fd.get());
  if (!own) return drop(client, "the connection broke");
  client.stage = Stage::asking;
  loop.change(client.fd.get(), EPOLLRDHUP);
  const Question question{.id = client.serial, .source = client.peer, .destination = *own};
  for (const int witness : found) tell(*find(witness), question);
  witnesses.asked(client.serial, client.fd.get(), found);
}

template <class Message>
void StoreServer::Impl::tell(Connection& witness, const Message& message) {
  const Bytes sealed = witness.witness->messages->seal(base::encode(message));
  outbox(witness.fd.get()).append(reinterpret_cast<const char*>(sealed.data()), sealed.size());
}

void StoreServer::Impl::read_witness(Connection& connection) {
  try {
    hear_witness(connection);
  } catch (const Error& error) {
    base::log(base::LogLevel::info, "TCPStore server: {} is not a witness of this job: {}", connection.peer.text(),
              error.cause());
    drop(connection, "not a witness of this job");
  }
}

void StoreServer::Impl::hear_witness(Connection& connection) {
  WitnessConversation& witness = *connection.witness;
  if (!witness.messages) {
    const stream::Progress progress = stream::advance(connection.fd.get(), *witness.handshake);
    if (progress == stream::Progress::gone) return drop(connection, "closed by the witness");
    if (progress != stream::Progress::proven) return;
    witness.messages.emplace(witness.handshake->take_cipher(), kMostWitnessBytes);
  }
  for (;;) {
    while (const auto message = witness.messages->next()) {
      if (std::exchange(witness.stated, true)) {
        take_answer(connection, base::decode<Answer>(*message));
      } else {
        take_statement(connection, base::decode<Statement>(*message));
      }
    }
    std::array<std::byte, kMostWitnessBytes> bytes;
    const ssize_t count = ::recv(connection.fd.get(), bytes.data(), bytes.size(), 0);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (count <= 0) return drop(connection, "closed by the witness");
    witness.messages->append(std::span{bytes}.first(static_cast<std::size_t>(count)));
  }
}

void StoreServer::Impl::take_statement(Connection& connection, const Statement& statement) {
  const bool named = std::find(statement.addresses.begin(), statement.addresses.end(), connection.peer.address) !=
                     statement.addresses.end();
  Role role = Role::resident;
  if (connection.admitted) {
    role = Role::local;
  } else if (!named || statement.own.port != connection.peer.port) {
    role = Role::translated;
  } else if (witnesses.has_host(statement)) {
    role = Role::redundant;
  }
  tell(connection, Welcome{.role = role, .seen = connection.peer});
  if (role != Role::resident) return;
  connection.resident = true;
  base::keep_alive(connection.fd.get());
  strangers.remove(connection.serial);
  witnesses.add(connection.fd.get(), statement);
}

void StoreServer::Impl::take_answer(Connection& connection, const Answer& answer) {
  const auto fd = witnesses.answered(connection.fd.get(), answer.id);
  if (!fd) return;
  Connection& client = *find(*fd);
  if (answer.owner.kind == SocketOwner::Kind::ours) {
    admit(client);
  } else if (witnesses.all_answered(answer.id)) {
    if (answer.owner.kind == SocketOwner::Kind::none && !is_established(*fd))
      return drop(client, "closed by the client");
    refuse(client, answer.owner.reason());
  }
}

void StoreServer::Impl::admit(Connection& client) {
  witnesses.settled(client.serial);
  // While it is established, no later connection can have had these addresses and ports when the witness looked.
  if (!is_established(client.fd.get())) return drop(client, "closed by the client");
  client.admitted = true;
  client.stage = Stage::client;
  strangers.recognize(client.serial);
  loop.change(client.fd.get(), EPOLLIN);
  receive(client);  // now: its VALIDATE has arrived, and its deadline may be near
}

void StoreServer::Impl::refuse(Connection& client, const std::string& reason) {
  refusals.post(fmt::format("refused a connection from {}: {}", client.peer.text(), reason));
  drop(client, reason);
}

void StoreServer::Impl::lose_witness(int fd) {
  for (const int client : witnesses.remove(fd)) {
    if (Connection* const left = find(client))
      refuse(*left, "libddp's process on its host, which reports its owner, has ended");
  }
}

}  // namespace ddp::store_server
