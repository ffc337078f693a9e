// The plugin's own use of the step's store: a client of the c10d protocol with the few requests by which nodes agree.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::srun_plugin {

/// A connection to the store beside srun. Throws Error from every member: unavailable, peer_lost, timeout (no answer
/// within kAnswerLimit), protocol.
class StepStore {
 public:
  static constexpr std::chrono::seconds kAnswerLimit{2};

  /// @param address numeric, or a name.
  StepStore(const std::string& address, std::uint16_t port);

  void set(const std::string& key, const Bytes& value);
  /// Sets @p key unless it has a value. Returns the value that it has then.
  Bytes set_first(const std::string& key, const Bytes& value);
  /// Adds to a number; @return the sum.
  std::int64_t add(const std::string& key, std::int64_t amount);
  /// Waits until all have values; false at the deadline.
  bool wait(const std::vector<std::string>& keys, Deadline deadline);
  /// The same in two steps for who waits for other things, too: fd() is readable once there is an answer, or the store
  /// has ended. Other members must not be called in between.
  void ask_wait(const std::vector<std::string>& keys);
  void take_wait();
  int fd() const { return socket_.get(); }
  /// By key; empty for those without a value.
  std::vector<Bytes> get(const std::vector<std::string>& keys);

 private:
  void send(const Bytes& request);
  std::uint8_t receive_byte();
  Bytes receive_value();
  void receive(std::span<std::byte> bytes);

  std::string what_;  ///< for messages
  base::UniqueFd socket_;
};

}  // namespace ddp::srun_plugin
