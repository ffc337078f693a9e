#include "control/loop_connection.hpp"

#include <vector>

namespace ddp::launcher {

LoopConnection::LoopConnection(EventLoop& loop, control::Connection connection, OnMessage on_message, OnLost on_lost)
    : loop_(loop),
      connection_(std::move(connection)),
      callbacks_(std::make_shared<Callbacks>(
          Callbacks{.on_message = std::move(on_message), .on_lost = std::move(on_lost), .enabled = true})) {
  loop_.watch(connection_.fd(), [this] { read(); });
}

LoopConnection::~LoopConnection() { forget(); }

void LoopConnection::forget() {
  callbacks_->enabled = false;
  loop_.forget(connection_.fd());
}

void LoopConnection::send(const control::Message& message) {
  if (!connection_.open()) return;
  connection_.send(message);
  loop_.want_write(connection_.fd(), connection_.wants_to_write());
}

void LoopConnection::beat() {
  if (!connection_.open()) return;
  connection_.beat();
  loop_.want_write(connection_.fd(), connection_.wants_to_write());
}

control::Connection LoopConnection::release() {
  forget();
  return std::move(connection_);
}

void LoopConnection::close(Deadline deadline) {
  forget();
  connection_.close(deadline);
}

void LoopConnection::read() {
  if (!connection_.open()) return;
  const std::shared_ptr<Callbacks> callbacks = callbacks_;
  if (connection_.wants_to_write()) {
    connection_.flush();
    loop_.want_write(connection_.fd(), connection_.wants_to_write());
  }
  const std::vector<control::Message> messages = connection_.receive();
  const bool lost = !connection_.open();
  const std::string why = connection_.lost_because();
  if (lost) loop_.forget(connection_.fd());
  for (const control::Message& message : messages) {
    callbacks->on_message(message);
    if (!callbacks->enabled) return;
  }
  if (lost) callbacks->on_lost(why);
}

}  // namespace ddp::launcher
