// Both sides of the door for tests of the handshake: a listener that is served, servers that misbehave, raw clients.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "control/handshake.hpp"
#include "support/error_of.hpp"

namespace ddp::launcher::control {

inline Deadline soon() { return Deadline::after(60s); }

/// A listener that is served by a thread of its own.
class ServedListener {
 public:
  explicit ServedListener(const Secret& secret, std::uint16_t port = 0,
                          std::chrono::milliseconds patience = std::chrono::seconds(10),
                          std::chrono::milliseconds silence = std::chrono::seconds(5))
      : listener_("127.0.0.1", port, secret, patience, silence),
        port_(listener_.port()),
        thread_([this] { serve(); }) {}
  explicit ServedListener(std::shared_ptr<Prover> prover)
      : listener_({"127.0.0.1"}, 0, std::move(prover)), port_(listener_.port()), thread_([this] { serve(); }) {}
  ~ServedListener() {
    stop_ = true;
    thread_.join();
  }
  std::uint16_t port() const { return port_; }
  int proven() const { return proven_; }

 private:
  void serve() {
    const std::vector<int> fds = listener_.fds();
    while (!stop_) {
      pollfd entry{.fd = fds.at(0), .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, 10);
      for (Connection& connection : listener_.accept_ready()) {
        ++proven_;
        connection.send(SignalReceived{.signal = 1});
        connections_.push_back(std::move(connection));
      }
    }
  }

  Listener listener_;
  std::uint16_t port_;
  std::vector<Connection> connections_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> proven_ = 0;
  std::thread thread_;
};

/// Accepts connections one after the other and does with them what it is told.
class StrangeServer {
 public:
  explicit StrangeServer(std::function<void(int)> act)
      : listening_(base::listen_tcp("127.0.0.1")), port_(base::local_port(listening_.get())), act_(std::move(act)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~StrangeServer() {
    stop_ = true;
    thread_.join();
  }
  std::uint16_t port() const { return port_; }

 private:
  void serve() {
    while (!stop_) {
      if (!base::wait_for(listening_.get(), POLLIN, Deadline::after(10ms))) continue;
      const base::UniqueFd fd{::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      try {
        act_(fd.get());
      } catch (const Error&) {  // the client left
      }
    }
  }

  base::UniqueFd listening_;
  std::uint16_t port_;
  std::function<void(int)> act_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

inline Error failure_of(const std::vector<std::string>& addresses, std::uint16_t port, const Secret& secret,
                        Deadline deadline = soon()) {
  return ddp::test::thrown_by([&] { connect(addresses, port, secret, deadline); });
}

inline base::UniqueFd raw(std::uint16_t port) { return base::connect_tcp("127.0.0.1", port, soon()); }

inline void send_raw(int fd, std::span<const std::byte> bytes) {
  base::send_all(fd, bytes, soon(), "sending in a test");
}

/// All that comes until the other side closes.
inline Bytes receive_to_end(int fd) {
  Bytes all;
  std::array<std::byte, 4096> chunk;
  while (base::wait_for(fd, POLLIN, soon())) {
    const ssize_t size = ::recv(fd, chunk.data(), chunk.size(), 0);
    if (size <= 0) return all;
    all.insert(all.end(), chunk.begin(), chunk.begin() + size);
  }
  ADD_FAILURE() << "it was not closed";
  return all;
}

using stream::EphemeralKey;
using stream::Greeting;
using stream::HandshakeSide;
using stream::with_length;

inline Bytes encode(const Greeting& greeting) { return stream::encode(kProtocol, greeting); }

inline Greeting receive_greeting(int fd) {
  Bytes bytes(stream::kGreetingBytes);
  base::receive_exactly(fd, bytes, soon(), "receiving in a test");
  return parse_greeting(kProtocol, bytes).value();
}

inline Announcement receive_announcement(int fd) {
  Bytes bytes(stream::kAnnouncementBytes);
  base::receive_exactly(fd, bytes, soon(), "receiving in a test");
  return stream::parse_announcement(bytes);
}

inline Bytes receive_proof(int fd) {
  Bytes header(stream::kProofHeaderBytes);
  base::receive_exactly(fd, header, soon(), "receiving in a test");
  Bytes proof(stream::proof_length(header));
  base::receive_exactly(fd, proof, soon(), "receiving in a test");
  return proof;
}

inline Greeting greeting_of(const EphemeralKey& key) { return {.version = kProtocolVersion, .key = key.public_key()}; }
inline Greeting fresh_greeting() { return greeting_of(EphemeralKey{}); }

/// An announcement of the job's secret.
inline constexpr Announcement kBySecret{.method = ProofMethod::job_secret};

inline stream::Statement make_statement(HandshakeSide side, const Greeting& connecting, const Greeting& accepting,
                                        const Announcement& announcement) {
  Bytes answered = encode(accepting);
  const Bytes announced = stream::encode(announcement);
  answered.insert(answered.end(), announced.begin(), announced.end());
  return stream::make_statement(side, encode(connecting), answered);
}

inline Bytes prove(const Secret& secret, HandshakeSide side, const Greeting& connecting, const Greeting& accepting) {
  return job_secret_prover(secret)->prove(make_statement(side, connecting, accepting, kBySecret));
}
inline bool proves(std::span<const std::byte> proof, const Secret& secret, HandshakeSide side,
                   const Greeting& connecting, const Greeting& accepting) {
  try {
    job_secret_prover(secret)->check(proof, make_statement(side, connecting, accepting, kBySecret));
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::conflict);
    return false;
  }
}

inline std::size_t received(Connection& connection) {
  return base::wait_for(connection.fd(), POLLIN, soon()) ? connection.receive().size() : 0;
}

inline std::uint16_t free_port() { return base::local_port(base::listen_tcp("127.0.0.1").get()); }

}  // namespace ddp::launcher::control
