// The witnesses that a store has, by the addresses of their hosts; and what it has asked them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "store_server/witness_protocol.hpp"

namespace ddp::store_server {

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
