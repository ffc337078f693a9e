#include "kvs/pmi2_wire.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::kvs {
namespace {

constexpr std::size_t kLengthDigits = 6;
constexpr std::size_t kMaxMessageBytes = 999'999;  // the most that six digits can express
constexpr std::size_t kMaxGreetingBytes = 256;

}  // namespace

std::string encode_pmi2(const PmiMessage& message) {
  std::string body = "cmd=" + message.command + ";";
  for (const auto& [key, value] : message.fields) {
    body += key + "=" + value + ";";
  }
  const auto separators = static_cast<std::size_t>(std::count(body.begin(), body.end(), ';'));
  if (separators != message.fields.size() + 1 || body.find('\0') != body.npos || body.size() > kMaxMessageBytes) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "sending " + message.command + " to the PMI-2 server",
                 .cause = "a field has a semicolon or a zero byte, or the message is too long"}};
  }
  return fmt::format("{:<6}", body.size()) + body;
}

PmiMessage parse_pmi2(std::string_view body) {
  PmiMessage message;
  bool first = true;
  while (!body.empty()) {
    std::string_view field = take_until(body, ';', "a field");
    const std::string_view key = take_until(field, '=', "the name of a field");
    if (first) {
      if (key != "cmd" || field.empty())
        throw_pmi_protocol("a message does not begin with a command: " + pmi_excerpt(key));
      message.command = field;
      first = false;
    } else {
      message.fields.emplace_back(key, field);
    }
  }
  if (first) throw_pmi_protocol("a message is empty");
  return message;
}

std::size_t parse_pmi2_length(std::string_view six) {
  const std::string_view whole = six;
  while (!six.empty() && six.front() == ' ') six.remove_prefix(1);
  while (!six.empty() && six.back() == ' ') six.remove_suffix(1);
  const auto length = parse_number<std::size_t>(six);
  if (whole.size() != kLengthDigits || !length)
    throw_pmi_protocol("the length of a message is not a number: " + pmi_excerpt(whole));
  return *length;
}

void check_pmi2_greeting(std::string_view line) {
  constexpr std::string_view kAnswer = "cmd=response_to_init ";
  if (!line.starts_with(kAnswer)) throw_pmi_protocol("the greeting is not understood: " + pmi_excerpt(line));
  line.remove_prefix(kAnswer.size());
  const std::string with_end = std::string(line) + " ";
  if (with_end.find("rc=0 ") == with_end.npos || with_end.find("pmi_version=2 ") == with_end.npos) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "greeting the PMI-2 server",
                 .cause = "it does not accept PMI version 2.0: " + pmi_excerpt(line),
                 .hint = "start the job with srun --mpi=pmi2, and let only one program of a task use PMI"}};
  }
}

void Pmi2Channel::greet(Deadline deadline) {
  constexpr std::string_view kHello = "cmd=init pmi_version=2 pmi_subversion=0\n";
  channel_.transmit(kHello, deadline, "greeting the PMI-2 server");
  // The server sends nothing more before the next request: extra bytes would be garbage.
  const auto line = channel_.read_line(kMaxGreetingBytes, deadline);
  if (!line) {
    throw Error{{.code = ErrorCode::timeout,
                 .attempted = "greeting the PMI-2 server",
                 .cause = "no answer before the deadline",
                 .hint = "is PMI_FD the socket that srun --mpi=pmi2 gave to this process?"}};
  }
  check_pmi2_greeting(*line);
}

void Pmi2Channel::send(const PmiMessage& message, Deadline deadline) {
  channel_.transmit(encode_pmi2(message), deadline, "sending " + message.command + " to the PMI-2 server");
}

std::optional<PmiMessage> Pmi2Channel::receive(Deadline deadline) {
  std::string& received = channel_.received();
  for (;;) {
    if (received.size() >= kLengthDigits) {
      const std::string_view bytes = received;
      const std::size_t length = parse_pmi2_length(bytes.substr(0, kLengthDigits));
      if (bytes.size() - kLengthDigits >= length) {
        PmiMessage message = parse_pmi2(bytes.substr(kLengthDigits, length));
        received.erase(0, kLengthDigits + length);
        return message;
      }
    }
    if (!channel_.read_more(deadline)) return std::nullopt;
  }
}

}  // namespace ddp::kvs
