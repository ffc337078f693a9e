// The connection to a PMI server, and what the parsers of PMI-1 and PMI-2 share: both protocols are texts on a socket
// that the launcher leaves open in PMI_FD.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::kvs {

/// Throws Error(protocol) about something that a server sent.
[[noreturn]] void throw_pmi_protocol(std::string cause);

/// The beginning of received text, made safe to print.
std::string pmi_excerpt(std::string_view text);

/// Removes and returns the part of @p text before the next @p separator. Throws Error(protocol) where there is none.
std::string_view take_until(std::string_view& text, char separator, std::string_view what);

/// Nothing unless all of @p text is a number.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// One message: a command and its fields, in order.
struct PmiMessage {
  std::string command;
  std::vector<std::pair<std::string, std::string>> fields{};

  /// The first field of that name.
  std::optional<std::string_view> find(std::string_view name) const;
  /// The same, as a whole number; nothing if it is absent. Throws Error(protocol) for anything but a number.
  std::optional<int> number(std::string_view name) const;
};

/// "PMI2_ERR_INIT (1)", "PMI_FAIL (-1)".
std::string pmi_code_name(int version, int code);

/// Owns the descriptor.
class PmiChannel {
 public:
  /// Makes @p fd non-blocking and close-on-exec. Throws Error(unavailable) when it is not an open socket.
  explicit PmiChannel(base::UniqueFd fd);

  /// Sends all of it; @p what names the exchange in errors. Throws as base::send_all() does.
  void transmit(std::string_view text, Deadline deadline, const std::string& what);

  /// Appends newly arrived bytes to received(); false at @p deadline. Throws Error(peer_lost) when the server closes.
  bool read_more(Deadline deadline);

  /// Up to the next newline, without it. Nothing at @p deadline. Keeps what is incomplete for the next call.
  /// Throws Error(protocol) for a line longer than @p most_bytes.
  std::optional<std::string> read_line(std::size_t most_bytes, Deadline deadline);

  std::string& received() { return received_; }  ///< bytes of the message that is still incomplete

 private:
  base::UniqueFd fd_;
  std::string received_;
};

}  // namespace ddp::kvs
