// What a StoreServer consists of; the parts of its work are in store_server.cpp (events, accepting),
// client_admission.cpp (whose a connection is) and client_service.cpp (requests and answers).
#pragma once

#include <sys/epoll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "store_server/key_space.hpp"
#include "store_server/peer_address.hpp"
#include "store_server/socket_owner.hpp"
#include "store_server/store_protocol.hpp"
#include "store_server/store_server.hpp"
#include "store_server/witness_protocol.hpp"
#include "stream/admission.hpp"
#include "stream/event_loop.hpp"
#include "stream/strangers.hpp"

namespace ddp::store_server {

// Lines for the user about connections that the store refused or closed. A stranger must not fill the user's terminal:
// some lines at once, then fewer and fewer.

/// One thread posts, another takes.
class Refusals {
 public:
  using Clock = std::chrono::steady_clock;

  void post(const std::string& line, Clock::time_point now = Clock::now());

  int fd() const { return posted_.fd(); }  ///< readable while there are lines
  std::vector<std::string> take();

  static constexpr int kLinesAtOnce = 5;
  static constexpr std::chrono::seconds kFirstPause{1};  ///< each next one is twice as long,
  static constexpr std::chrono::minutes kLongestPause{10};

 private:
  base::WakeEvent posted_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
  // of the thread that posts:
  int at_once_ = kLinesAtOnce;
  std::size_t left_out_ = 0;
  std::chrono::milliseconds pause_{kFirstPause};
  Clock::time_point next_{};
};

// One connection: its stage, its requests, and the answers to send.

enum class Stage {
  accepted,  ///< its first byte will tell a client from a witness
  asking,    ///< a client from another host, whose witness is asked; its bytes stay in the kernel, unread
  witness,
  client,
};

/// With a witness: first it proves the key, then it states what it is, then it answers.
struct WitnessConversation {
  std::unique_ptr<stream::Handshake> handshake;
  std::optional<stream::SealedMessages> messages = {};
  bool stated = false;
};

struct Connection {
  using Clock = std::chrono::steady_clock;

  Connection(base::UniqueFd descriptor, std::uint64_t number, const Endpoint& from, std::size_t most_request_bytes)
      : fd(std::move(descriptor)), serial(number), peer(from), parser(most_request_bytes) {}

  base::UnsharedFd fd;
  std::uint64_t serial;  ///< ascending; descriptors are reused
  Endpoint peer;
  bool admitted = false;  ///< it is the job's user's
  Stage stage = Stage::accepted;
  std::unique_ptr<WitnessConversation> witness;
  bool resident = false;  ///< a witness that answers questions
  RequestParser parser;
  std::string outbox;
  std::size_t sent = 0;                    ///< bytes of the outbox that the kernel has
  bool writing = false;                    ///< watched for EPOLLOUT
  bool queued = false;                     ///< in the server's list of outboxes to flush
  bool parked = false;                     ///< not read: others must make room first
  bool large = false;                      ///< one of the large requests that may be received at a time
  std::size_t counted_bytes = 0;           ///< of unread(), in the server's sum
  Clock::time_point moved = Clock::now();  ///< when bytes last came or went

  std::size_t unread() const { return outbox.size() - sent; }
  /// Sends what the kernel takes of the outbox. False when the client is gone.
  bool send_some() noexcept;
};

/// Neither end has closed this connection, so that its addresses and ports are no other one's.
bool is_established(int fd) noexcept;

struct StoreServer::Impl final : private Outboxes {
  explicit Impl(const StoreServerOptions& given);
  Impl(const StoreServerOptions& given, stream::Listeners listeners);
  Impl& operator=(Impl&&) = delete;
  ~Impl() override;

  /// Received per call: more than most requests; a value of 8 MiB takes 128 calls.
  static constexpr std::size_t kReceiveBytes = std::size_t{64} * 1024;

  StoreServerOptions options;
  std::uint16_t port = 0;
  Refusals refusals;

 private:
  // ---- events
  void serve() noexcept;
  void react(int fd, std::uint32_t events);
  void take_in(base::UniqueFd fd, const Endpoint& peer);
  bool make_room(int listener, int error);
  void drop(Connection& connection, std::string_view why);
  void drop_late();
  Connection* find(int fd) const;
  Connection& numbered(std::uint64_t serial) const;

  // ---- whose a connection is
  bool is_own_host(const PeerAddress& peer);
  bool is_ours(int fd, const Endpoint& peer);
  void read_opening(Connection& connection);
  void ask_witnesses(Connection& client);
  void read_witness(Connection& witness);
  void hear_witness(Connection& witness);
  void take_statement(Connection& witness, const Statement& statement);
  void take_answer(Connection& witness, const Answer& answer);
  template <class Message>
  void tell(Connection& witness, const Message& message);
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

  stream::EventLoop loop;
  base::WakeEvent stop;
  bool stopped = false;
  base::UniqueFd spare;  ///< closed for a moment when no descriptor is left, to accept and close a connection
  KeySpace keys;
  OwnAddresses own_addresses;
  SocketOwners owners;
  WitnessDirectory witnesses;
  std::vector<std::unique_ptr<Connection>> connections;  ///< by descriptor, which is the ClientId
  stream::Strangers strangers;  ///< those that have not sent VALIDATE, nor become witnesses; of this host are known
  std::vector<int> to_flush;
  std::deque<int> parked;        ///< oldest first; may have descriptors of connections that are gone or go on
  std::size_t unread_bytes = 0;  ///< of all answers
  std::size_t large_requests = 0;
  std::array<char, kReceiveBytes> received;
  std::uint64_t last_serial = 0;
  stream::Timer ends{loop, [this] { drop_late(); }};
  stream::Acceptor acceptor;
  std::thread thread;  ///< last: it uses the others
};

}  // namespace ddp::store_server
