// The PMI-2 wire protocol: messages on the socket that Slurm (or Hydra) leaves open in PMI_FD, and how values of any
// bytes are cut into the short texts that the protocol can carry.
//
// A connection begins with one line each way ("cmd=init pmi_version=2 pmi_subversion=0\n"); then every message is a
// decimal length of exactly 6 characters, padded with blanks, and "cmd=NAME;key=value;...;". Source: the PMI-2 wire
// protocol of MPICH, and the behaviour of Slurm 22.05's mpi/pmi2 plugin, which does not know the protocol's escaped
// ';'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/key_value_store.hpp>

#include "base/unique_fd.hpp"

namespace ddp::kvs {

/// Longest value of the PMI-2 key-value space: PMI2_MAX_VALLEN (1024) less the terminating zero.
inline constexpr std::size_t kPmi2MaxValueBytes = 1023;

/// One message: a command and its fields, in order.
struct Pmi2Message {
  std::string command;
  std::vector<std::pair<std::string, std::string>> fields{};

  /// The first field of that name.
  std::optional<std::string_view> find(std::string_view name) const;
  /// The same, as a whole number; nothing if it is absent. Throws Error(protocol) for anything but a number.
  std::optional<int> number(std::string_view name) const;
};

/// Length and body, ready to send. Throws Error(invalid_argument) for fields that the protocol cannot carry.
std::string encode_pmi2(const Pmi2Message& message);

/// The body (without its length). Throws Error(protocol).
Pmi2Message parse_pmi2(std::string_view body);

/// The number in the 6 characters before a body. Throws Error(protocol).
std::size_t parse_pmi2_length(std::string_view six);

/// The server's line in answer to "cmd=init", without the newline. Throws Error(protocol) unless it is one,
/// Error(unavailable) when the server does not speak PMI 2.0.
void check_pmi2_greeting(std::string_view line);

/// "PMI2_ERR_INIT (1)".
std::string pmi2_code_name(int code);

/// Cuts @p value into texts of at most kPmi2MaxValueBytes bytes, at least one. The first begins with
/// "1:<bytes>:<texts>:<key>:", the key making the text self-describing; the rest is unpadded base64url (RFC 4648).
std::vector<std::string> split_pmi2_value(std::string_view key, std::span<const std::byte> value);

/// Puts a value together again from its texts, in order.
class Pmi2ValueAssembler {
 public:
  /// @param key the key that the value must be of. Throws Error(protocol), as add() does.
  Pmi2ValueAssembler(std::string_view key, std::string_view first);
  void add(std::string_view text);

  std::size_t texts() const { return texts_; }  ///< how many texts the value has; the first is already taken
  Bytes finish() &&;                            ///< throws Error(protocol) unless all bytes have arrived

 private:
  std::string key_;
  std::size_t size_ = 0;
  std::size_t texts_ = 0;
  std::string encoded_;
};

/// The connection to the PMI-2 server. Owns the descriptor.
class Pmi2Channel {
 public:
  /// Makes @p fd non-blocking and close-on-exec. Throws Error(unavailable) when it is not an open socket.
  explicit Pmi2Channel(base::UniqueFd fd);

  /// The opening exchange of lines.
  void greet(Deadline deadline);

  void send(const Pmi2Message& message, Deadline deadline);

  /// The next message; nothing at @p deadline. Keeps an incomplete one for the next call. Throws Error: peer_lost when
  /// the server closes, protocol when it sends garbage.
  std::optional<Pmi2Message> receive(Deadline deadline);

 private:
  void transmit(std::string_view text, Deadline deadline, const std::string& what);
  bool read_more(Deadline deadline);

  base::UniqueFd fd_;
  std::string received_;  ///< bytes of the message that is still incomplete
};

}  // namespace ddp::kvs
