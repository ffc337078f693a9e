// A TCPStore server's values, counters and queues, and which client waits for which key. No sockets here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store_server/store_key.hpp"
#include "store_server/store_protocol.hpp"

namespace ddp::store_server {

/// Identifies a connected client.
using ClientId = int;

class Outboxes {
 public:
  virtual ~Outboxes() = default;
  /// The bytes for @p client, to be appended to.
  virtual std::string& outbox(ClientId client) = 0;
  /// How many bytes it may take, before the client has read some.
  virtual std::size_t room(ClientId /*client*/) { return StoreLimits{}.answer_bytes; }
};

/// Behaves as torch's libuv server, except in two cases where that leaves a client waiting forever: a wait for a filled
/// queue and an absent key ends when the key is set, and an item that its woken client did not take wakes the next
/// client.
class KeySpace {
 public:
  /// @param most_bytes of all keys, values, queues and waits, with what it takes to find them
  explicit KeySpace(std::size_t most_bytes = StoreLimits{}.stored_bytes) : most_bytes_(most_bytes) {}

  /// Answers @p request; may also answer waits of other clients. Throws Error(protocol) where torch's server drops the
  /// client (a counter that is not a number), if the answer would exceed the client's room, or if the key space or a
  /// value would grow beyond its limit. Nothing has changed then, but that a MULTI_SET may have set some of its keys,
  /// and a client's wait may have to be forgotten.
  void apply(ClientId client, const Request& request, Outboxes& outboxes);

  /// The client has disconnected: ends its wait.
  void forget(ClientId client, Outboxes& outboxes);

  std::size_t waiting_clients() const { return waits_.size(); }
  /// Keys with waiting clients.
  std::size_t awaited_keys() const { return waiters_.size(); }
  /// What is counted against most_bytes.
  std::size_t held_bytes() const { return held_bytes_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  template <class Value>
  using Map = std::unordered_map<std::string, Value, Hash, std::equal_to<>>;

  /// A client in a key's row of waiting clients.
  struct Waiter {
    ClientId client;
    std::size_t place;  ///< in its Wait
  };
  using Row = std::list<Waiter>;
  struct Place {
    Map<Row>::value_type* row;  ///< null once the key has come
    Row::iterator waiter;
  };
  /// All that one client waits for.
  struct Wait {
    std::vector<Place> places;
    std::size_t missing = 0;
  };

  void hold(Operation operation, std::size_t bytes);
  void release(std::size_t bytes) { held_bytes_ -= bytes; }
  void insert(Operation operation, std::string_view key, std::string_view value);
  void replace(Operation operation, std::string& old, std::string_view value);
  void set(Operation operation, std::string_view key, std::string_view value, Outboxes& outboxes);
  void compare_set(ClientId client, const Request& request, Outboxes& outboxes);
  std::int64_t add(Operation operation, std::string_view key, std::int64_t amount);
  void append(std::string_view key, std::string_view value, Outboxes& outboxes);
  void barrier(ClientId client, const Request& request, Outboxes& outboxes);
  void push(std::string_view queue, std::string_view item, Outboxes& outboxes);
  void pop(ClientId client, std::string_view queue, Outboxes& outboxes);

  bool exists(std::string_view key) const { return values_.contains(key) || queues_.contains(key); }
  std::string_view value(std::string_view key) const;
  void wait(ClientId client, std::span<const std::string_view> keys, Outboxes& outboxes);
  void enqueue(Operation operation, ClientId client, Wait& wait, std::string_view key);
  void forget_row(Map<Row>::const_iterator row);
  void wake_all(std::string_view key, Outboxes& outboxes);
  void wake_one(std::string_view queue, Outboxes& outboxes);
  bool arrived(const Waiter& waiter, Outboxes& outboxes);
  void cancel_wait(ClientId client);
  void pass_on(ClientId client, const Request* request, Outboxes& outboxes);

  std::size_t most_bytes_;
  std::size_t held_bytes_ = 0;
  Map<std::string> values_;
  Map<std::deque<std::string>> queues_;  ///< none is empty
  Map<Row> waiters_;                     ///< none is empty
  std::unordered_map<ClientId, Wait> waits_;
  /// Clients woken by an item in a queue that have sent no request since.
  std::unordered_map<ClientId, std::string> woken_;
};

}  // namespace ddp::store_server
