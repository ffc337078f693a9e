#include "store_server/witness_protocol.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::store_server {

WitnessEnd::WitnessEnd(int socket, const StoreKey& key, Deadline deadline, const std::string& attempted)
    : socket_(socket), attempted_(attempted) {
  stream::Handshake handshake(kWitnessProtocol, {}, stream::job_secret_provers(stream::Secret::of(key.bytes())));
  converse(socket, handshake, deadline, attempted);
  messages_.emplace(handshake.take_cipher(), kMostWitnessBytes);
}

void WitnessEnd::send_bytes(const Bytes& message, Deadline deadline) {
  base::send_all(socket_, messages_->seal(message), deadline, attempted_);
}

std::optional<Bytes> WitnessEnd::next() {
  std::array<std::byte, kMostWitnessBytes> chunk;
  for (;;) {
    if (auto message = messages_->next()) return message;
    const ssize_t count = ::recv(socket_, chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (count > 0) {
      messages_->append(std::span{chunk}.first(static_cast<std::size_t>(count)));
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return std::nullopt;
    } else if (count == 0 || errno != EINTR) {
      throw Error{{.code = ErrorCode::peer_lost,
                   .attempted = attempted_,
                   .cause = count == 0 ? "the other side closed the connection" : base::errno_text(errno),
                   .native = count == 0 ? "" : base::errno_name(errno)}};
    }
  }
}

Bytes WitnessEnd::receive_bytes(Deadline deadline) {
  for (;;) {
    if (auto message = next()) return *std::move(message);
    if (base::wait_for(socket_, POLLIN, deadline)) continue;
    throw Error{{.code = ErrorCode::timeout,
                 .attempted = attempted_,
                 .cause = "no answer before the deadline",
                 .native = base::errno_name(ETIMEDOUT)}};
  }
}

void WitnessDirectory::add(int witness, const Statement& statement) {
  hosts_.insert_or_assign(statement.host, witness);
  for (const PeerAddress& address : std::set<PeerAddress>(statement.addresses.begin(), statement.addresses.end()))
    by_address_.emplace(address, witness);
}

std::vector<int> WitnessDirectory::at(const PeerAddress& address) const {
  std::vector<int> witnesses;
  const auto [begin, end] = by_address_.equal_range(address);
  for (auto found = begin; found != end; ++found) witnesses.push_back(found->second);
  return witnesses;
}

void WitnessDirectory::asked(std::uint64_t serial, int client, const std::vector<int>& witnesses) {
  questions_.insert_or_assign(serial, Open{.client = client, .witnesses = {witnesses.begin(), witnesses.end()}});
}

std::optional<int> WitnessDirectory::answered(int witness, std::uint64_t serial) {
  const auto open = questions_.find(serial);
  if (open == questions_.end() || open->second.witnesses.erase(witness) == 0) return std::nullopt;
  const int client = open->second.client;
  if (open->second.witnesses.empty()) questions_.erase(open);
  return client;
}

std::vector<int> WitnessDirectory::remove(int witness) {
  std::erase_if(by_address_, [witness](const auto& entry) { return entry.second == witness; });
  std::erase_if(hosts_, [witness](const auto& entry) { return entry.second == witness; });
  std::vector<int> unanswered;
  for (auto open = questions_.begin(); open != questions_.end();) {
    const bool concerned = open->second.witnesses.erase(witness) > 0;
    if (concerned && open->second.witnesses.empty()) {
      unanswered.push_back(open->second.client);
      open = questions_.erase(open);
    } else {
      ++open;
    }
  }
  return unanswered;
}

}  // namespace ddp::store_server
