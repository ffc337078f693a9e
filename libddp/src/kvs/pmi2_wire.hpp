// The PMI-2 wire protocol: messages on the socket that Slurm leaves open in PMI_FD.
//
// A connection begins with one line each way ("cmd=init pmi_version=2 pmi_subversion=0\n"); then every message is a
// decimal length of exactly 6 characters, padded with blanks, and "cmd=NAME;key=value;...;". Source: the PMI-2 wire
// protocol of MPICH, and the behaviour of Slurm 22.05's mpi/pmi2 plugin, which does not know the protocol's escaped
// ';'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "kvs/pmi_channel.hpp"

namespace ddp::kvs {

/// Longest value of the PMI-2 key-value space: PMI2_MAX_VALLEN (1024) less the terminating zero.
inline constexpr std::size_t kPmi2MaxValueBytes = 1023;

/// Length and body, ready to send. Throws Error(invalid_argument) for fields that the protocol cannot carry.
std::string encode_pmi2(const PmiMessage& message);

/// The body (without its length). Throws Error(protocol).
PmiMessage parse_pmi2(std::string_view body);

/// The number in the 6 characters before a body. Throws Error(protocol).
std::size_t parse_pmi2_length(std::string_view six);

/// The server's line in answer to "cmd=init", without the newline. Throws Error(protocol) unless it is one,
/// Error(unavailable) when the server does not speak PMI 2.0.
void check_pmi2_greeting(std::string_view line);

/// Messages over the connection.
class Pmi2Channel {
 public:
  explicit Pmi2Channel(base::UniqueFd fd) : channel_(std::move(fd)) {}

  /// The opening exchange of lines.
  void greet(Deadline deadline);

  void send(const PmiMessage& message, Deadline deadline);

  /// The next message; nothing at @p deadline. Keeps an incomplete one for the next call. Throws Error: peer_lost when
  /// the server closes, protocol when it sends garbage.
  std::optional<PmiMessage> receive(Deadline deadline);

 private:
  PmiChannel channel_;
};

}  // namespace ddp::kvs
