// What a StoreServer consists of; the parts of its work are in store_server.cpp (events, accepting),
// client_admission.cpp (whose a connection is) and client_service.cpp (requests and answers).
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "store_server/connection.hpp"
#include "store_server/key_space.hpp"
#include "store_server/listeners.hpp"
#include "store_server/own_addresses.hpp"
#include "store_server/pending_connections.hpp"
#include "store_server/refusals.hpp"
#include "store_server/socket_owner.hpp"
#include "store_server/store_server.hpp"
#include "store_server/witness_directory.hpp"

namespace ddp::store_server {

struct StoreServer::Impl final : private Outboxes {
  explicit Impl(const StoreServerOptions& given);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() override;

  /// Received per call: more than most requests; a value of 8 MiB takes 128 calls.
  static constexpr std::size_t kReceiveBytes = std::size_t{64} * 1024;

  StoreServerOptions options;
  Listeners listeners;
  Refusals refusals;

 private:
  // ---- events
  void serve() noexcept;
  bool turn();
  void react(Connection& connection, std::uint32_t events);
  void accept_clients(int listener);
  void take_in(base::UniqueFd fd, const Endpoint& peer);
  bool make_room(int listener);
  void drop(Connection& connection, std::string_view why);
  void drop_expired();
  void pause_accepting();
  void resume_accepting();
  Deadline next_deadline();
  Connection* find(int fd) const;
  void watch(int fd, std::uint32_t events = EPOLLIN, int operation = EPOLL_CTL_ADD);

  // ---- whose a connection is
  bool is_own_host(const PeerAddress& peer);
  bool is_ours(int fd, const Endpoint& peer);
  void read_opening(Connection& connection);
  void ask_witnesses(Connection& client);
  void read_witness(Connection& witness);
  void take_statement(Connection& witness);
  void take_answer(Connection& witness);
  void admit(Connection& client);
  void refuse(Connection& client, const std::string& reason);
  void lose_witness(int fd);

  // ---- requests and answers
  void receive(Connection& connection);
  void receive_requests(Connection& connection);
  void answer(Connection& connection, const Request& request);
  bool send_some(Connection& connection) noexcept;
  void flush();
  void count_unread(Connection& connection) noexcept;
  bool must_wait(const Connection& connection) const;
  void park(Connection& connection);
  void resume_parked();
  void drop_stalled();
  bool set_events(const Connection& connection) noexcept;
  std::string& outbox(ClientId client) override;
  std::size_t room(ClientId client) override;

  base::UniqueFd epoll;
  base::WakeEvent stop;
  base::UniqueFd spare;  ///< closed for a moment when no descriptor is left, to accept and close a connection
  KeySpace keys;
  OwnAddresses own_addresses;
  SocketOwners owners;
  WitnessDirectory witnesses;
  std::vector<std::unique_ptr<Connection>> connections;  ///< by descriptor, which is the ClientId
  PendingConnections pending;
  struct Opening {
    int fd;
    std::uint64_t serial;
    Deadline limit;
  };
  std::deque<Opening> openings;  ///< the oldest first; may have connections that are gone, or have spoken
  std::vector<int> to_flush;
  std::deque<int> parked;        ///< oldest first; may have descriptors of connections that are gone or go on
  std::size_t unread_bytes = 0;  ///< of all answers
  std::size_t large_requests = 0;
  std::array<char, kReceiveBytes> received;
  std::uint64_t last_serial = 0;
  bool accepting = true;
  Deadline accept_again = Deadline::after(std::chrono::seconds(0));
  std::thread thread;  ///< last: it uses the others
};

}  // namespace ddp::store_server
