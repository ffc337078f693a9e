#include "kvs/pmi2_wire.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::kvs {
namespace {

constexpr std::size_t kLengthDigits = 6;
constexpr std::size_t kMaxMessageBytes = 999'999;  // the most that six digits can express
constexpr std::size_t kMaxGreetingBytes = 256;
constexpr const char* kClosedHint =
    "the server closes the connection when the step ends, and when PMI is used a second time in one task";
constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

[[noreturn]] void throw_protocol(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading from the PMI-2 server",
               .cause = std::move(cause),
               .hint = "is PMI_FD the socket that srun --mpi=pmi2 gave to this process?"}};
}

// The beginning of received text, made safe to print.
std::string excerpt(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 40)) shown += (c >= 0x20 && c < 0x7f) ? c : '?';
  return "'" + shown + (text.size() > 40 ? "...'" : "'");
}

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string base64url(std::span<const std::byte> data) {
  std::string text;
  text.reserve((data.size() * 4 + 2) / 3);
  for (std::size_t i = 0; i < data.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, data.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = (bits << 8) | (k < count ? std::to_integer<std::uint32_t>(data[i + k]) : 0);
    for (std::size_t k = 0; k <= count; ++k) text += kAlphabet[(bits >> (18 - 6 * k)) & 63U];
  }
  return text;
}

int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '-') return 62;
  if (c == '_') return 63;
  return -1;
}

// Appends the bytes that @p text encodes; false if it is not base64url.
bool append_base64url(std::string_view text, Bytes& out) {
  if (text.size() % 4 == 1) return false;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    const std::size_t count = std::min<std::size_t>(4, text.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const int digit = k < count ? digit_of(text[i + k]) : 0;
      if (digit < 0) return false;
      bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    }
    for (std::size_t k = 0; k + 1 < count; ++k) out.push_back(static_cast<std::byte>((bits >> (16 - 8 * k)) & 0xffU));
  }
  return true;
}

// Removes and returns the part of @p text before the next @p separator.
std::string_view take_until(std::string_view& text, char separator, std::string_view what) {
  const auto end = text.find(separator);
  if (end == text.npos) throw_protocol(fmt::format("{} has no end: {}", what, excerpt(text)));
  const auto part = text.substr(0, end);
  text.remove_prefix(end + 1);
  return part;
}

}  // namespace

std::optional<std::string_view> Pmi2Message::find(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return value;
  }
  return std::nullopt;
}

std::optional<int> Pmi2Message::number(std::string_view name) const {
  const auto text = find(name);
  if (!text) return std::nullopt;
  const auto value = parse_number<int>(*text);
  if (!value) throw_protocol(fmt::format("the field '{}' of {} is not a number: {}", name, command, excerpt(*text)));
  return value;
}

std::string encode_pmi2(const Pmi2Message& message) {
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

Pmi2Message parse_pmi2(std::string_view body) {
  Pmi2Message message;
  bool first = true;
  while (!body.empty()) {
    std::string_view field = take_until(body, ';', "a field");
    const std::string_view key = take_until(field, '=', "the name of a field");
    if (first) {
      if (key != "cmd" || field.empty()) throw_protocol("a message does not begin with a command: " + excerpt(key));
      message.command = field;
      first = false;
    } else {
      message.fields.emplace_back(key, field);
    }
  }
  if (first) throw_protocol("a message is empty");
  return message;
}

std::size_t parse_pmi2_length(std::string_view six) {
  const std::string_view whole = six;
  while (!six.empty() && six.front() == ' ') six.remove_prefix(1);
  while (!six.empty() && six.back() == ' ') six.remove_suffix(1);
  const auto length = parse_number<std::size_t>(six);
  if (whole.size() != kLengthDigits || !length)
    throw_protocol("the length of a message is not a number: " + excerpt(whole));
  return *length;
}

void check_pmi2_greeting(std::string_view line) {
  constexpr std::string_view kAnswer = "cmd=response_to_init ";
  if (!line.starts_with(kAnswer)) throw_protocol("the greeting is not understood: " + excerpt(line));
  line.remove_prefix(kAnswer.size());
  const std::string with_end = std::string(line) + " ";
  if (with_end.find("rc=0 ") == with_end.npos || with_end.find("pmi_version=2 ") == with_end.npos) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "greeting the PMI-2 server",
                 .cause = "it does not accept PMI version 2.0: " + excerpt(line),
                 .hint = "start the job with srun --mpi=pmi2, and let only one program of a task use PMI"}};
  }
}

std::string pmi2_code_name(int code) {
  // slurm/pmi2.h
  constexpr std::array<std::string_view, 15> kNames = {"PMI2_SUCCESS",
                                                       "PMI2_ERR_INIT",
                                                       "PMI2_ERR_NOMEM",
                                                       "PMI2_ERR_INVALID_ARG",
                                                       "PMI2_ERR_INVALID_KEY",
                                                       "PMI2_ERR_INVALID_KEY_LENGTH",
                                                       "PMI2_ERR_INVALID_VAL",
                                                       "PMI2_ERR_INVALID_VAL_LENGTH",
                                                       "PMI2_ERR_INVALID_LENGTH",
                                                       "PMI2_ERR_INVALID_NUM_ARGS",
                                                       "PMI2_ERR_INVALID_ARGS",
                                                       "PMI2_ERR_INVALID_NUM_PARSED",
                                                       "PMI2_ERR_INVALID_KEYVALP",
                                                       "PMI2_ERR_INVALID_SIZE",
                                                       "PMI2_ERR_OTHER"};
  if (code == -1) return "PMI2_FAIL (-1)";
  if (code < 0 || code >= static_cast<int>(kNames.size())) return fmt::format("PMI-2 code {}", code);
  return fmt::format("{} ({})", kNames[static_cast<std::size_t>(code)], code);
}

std::vector<std::string> split_pmi2_value(std::string_view key, std::span<const std::byte> value) {
  // The header's length depends on the count that it states; iterating settles at once.
  std::string header;
  std::string encoded = base64url(value);
  std::size_t texts = 1;
  for (;;) {
    header = fmt::format("1:{}:{}:{}:", value.size(), texts, key);
    const std::size_t needed = (header.size() + encoded.size() + kPmi2MaxValueBytes - 1) / kPmi2MaxValueBytes;
    if (needed <= texts) break;
    texts = needed;
  }
  encoded.insert(0, header);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < texts; ++i) {
    // No text may be empty: a server may treat an empty value as absent.
    const std::size_t begin = encoded.size() * i / texts;
    parts.push_back(encoded.substr(begin, encoded.size() * (i + 1) / texts - begin));
  }
  return parts;
}

Pmi2ValueAssembler::Pmi2ValueAssembler(std::string_view key, std::string_view first) : key_(key) {
  const auto version = take_until(first, ':', "the format of a value");
  const auto size = parse_number<std::size_t>(take_until(first, ':', "the size of a value"));
  const auto texts = parse_number<std::size_t>(take_until(first, ':', "the number of texts of a value"));
  const auto stored_key = take_until(first, ':', "the key of a value");
  if (version != "1") throw_protocol("a value has an unknown format: " + excerpt(version));
  if (!size || !texts || *texts == 0) throw_protocol("the header of a value has no sizes");
  if (stored_key != key) throw_protocol(fmt::format("the value of '{}' is one of {}", key, excerpt(stored_key)));
  size_ = *size;
  texts_ = *texts;
  encoded_ = first;
}

void Pmi2ValueAssembler::add(std::string_view text) { encoded_ += text; }

Bytes Pmi2ValueAssembler::finish() && {
  Bytes value;
  value.reserve(encoded_.size() / 4 * 3 + 3);
  if (!append_base64url(encoded_, value)) throw_protocol(fmt::format("the value of '{}' is not base64url", key_));
  if (value.size() != size_) {
    throw_protocol(fmt::format("the value of '{}' has {} bytes instead of {}", key_, value.size(), size_));
  }
  return value;
}

Pmi2Channel::Pmi2Channel(base::UniqueFd fd) : fd_(std::move(fd)) {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) {
    const int number = errno;
    const int given = fd_.release();  // not ours to close: it is not even open
    throw base::system_error(
        fmt::format("using descriptor {} (PMI_FD) as the PMI-2 connection", given), number,
        "something between srun and this program closes inherited descriptors (Python's subprocess "
        "needs close_fds=False), or PMI_FD is left over from another job step; use srun --mpi=pmix",
        ErrorCode::unavailable);
  }
  if (!S_ISSOCK(status.st_mode)) {
    const int given = fd_.release();  // not ours: PMI_FD is stale, and its number was reused
    throw base::system_error(fmt::format("using descriptor {} (PMI_FD) as the PMI-2 connection", given), ENOTSOCK,
                             "PMI_FD is left over from another program; use srun --mpi=pmix, or unset PMI_FD",
                             ErrorCode::unavailable);
  }
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(fd_.get(), F_SETFD, FD_CLOEXEC) != 0) {
    throw base::system_error("setting up the PMI-2 connection", errno);
  }
}

void Pmi2Channel::greet(Deadline deadline) {
  constexpr std::string_view kHello = "cmd=init pmi_version=2 pmi_subversion=0\n";
  transmit(kHello, deadline, "greeting the PMI-2 server");
  // The server sends nothing more before the next request: extra bytes would be garbage.
  std::size_t end = 0;
  while ((end = received_.find('\n')) == received_.npos) {
    if (received_.size() > kMaxGreetingBytes) throw_protocol("the greeting has no end: " + excerpt(received_));
    if (!read_more(deadline)) {
      throw Error{{.code = ErrorCode::timeout,
                   .attempted = "greeting the PMI-2 server",
                   .cause = "no answer before the deadline",
                   .hint = "is PMI_FD the socket that srun --mpi=pmi2 gave to this process?"}};
    }
  }
  check_pmi2_greeting(std::string_view{received_}.substr(0, end));
  received_.erase(0, end + 1);
}

void Pmi2Channel::send(const Pmi2Message& message, Deadline deadline) {
  transmit(encode_pmi2(message), deadline, "sending " + message.command + " to the PMI-2 server");
}

void Pmi2Channel::transmit(std::string_view text, Deadline deadline, const std::string& what) {
  try {
    base::send_all(fd_.get(), std::as_bytes(std::span{text}), deadline, what);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    ErrorDetail detail = error.detail();
    detail.hint = kClosedHint;
    throw Error{std::move(detail)};
  }
}

std::optional<Pmi2Message> Pmi2Channel::receive(Deadline deadline) {
  for (;;) {
    if (received_.size() >= kLengthDigits) {
      const std::string_view bytes = received_;
      const std::size_t length = parse_pmi2_length(bytes.substr(0, kLengthDigits));
      if (bytes.size() - kLengthDigits >= length) {
        Pmi2Message message = parse_pmi2(bytes.substr(kLengthDigits, length));
        received_.erase(0, kLengthDigits + length);
        return message;
      }
    }
    if (!read_more(deadline)) return std::nullopt;
  }
}

// Appends newly arrived bytes to received_; false at the deadline.
bool Pmi2Channel::read_more(Deadline deadline) {
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t count = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
    if (count > 0) {
      received_.append(buffer.data(), static_cast<std::size_t>(count));
      return true;
    }
    const int number = count == 0 ? ECONNRESET : errno;
    if (number == EAGAIN || number == EWOULDBLOCK) {
      if (!base::wait_for(fd_.get(), POLLIN, deadline)) return false;
    } else if (number != EINTR) {
      throw base::system_error("reading from the PMI-2 server", number, kClosedHint, ErrorCode::peer_lost);
    }
  }
}

}  // namespace ddp::kvs
