#include "kvs/pmi_channel.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <span>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::kvs {
namespace {

constexpr const char* kClosedHint =
    "the server closes the connection when the job ends, and when PMI is used a second time in one task";

}  // namespace

void throw_pmi_protocol(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading from the PMI server",
               .cause = std::move(cause),
               .hint = "is PMI_FD the socket that the launcher gave to this process?"}};
}

std::string pmi_excerpt(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 40)) shown += (c >= 0x20 && c < 0x7f) ? c : '?';
  return "'" + shown + (text.size() > 40 ? "...'" : "'");
}

std::string_view take_until(std::string_view& text, char separator, std::string_view what) {
  const auto end = text.find(separator);
  if (end == text.npos) throw_pmi_protocol(fmt::format("{} has no end: {}", what, pmi_excerpt(text)));
  const auto part = text.substr(0, end);
  text.remove_prefix(end + 1);
  return part;
}

std::optional<std::string_view> PmiMessage::find(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return value;
  }
  return std::nullopt;
}

std::optional<int> PmiMessage::number(std::string_view name) const {
  const auto text = find(name);
  if (!text) return std::nullopt;
  const auto value = parse_number<int>(*text);
  if (!value)
    throw_pmi_protocol(fmt::format("the field '{}' of {} is not a number: {}", name, command, pmi_excerpt(*text)));
  return value;
}

std::string pmi_code_name(int version, int code) {
  // pmi.h of MPICH, slurm/pmi2.h
  constexpr std::array<std::string_view, 14> kNames = {"SUCCESS",
                                                       "ERR_INIT",
                                                       "ERR_NOMEM",
                                                       "ERR_INVALID_ARG",
                                                       "ERR_INVALID_KEY",
                                                       "ERR_INVALID_KEY_LENGTH",
                                                       "ERR_INVALID_VAL",
                                                       "ERR_INVALID_VAL_LENGTH",
                                                       "ERR_INVALID_LENGTH",
                                                       "ERR_INVALID_NUM_ARGS",
                                                       "ERR_INVALID_ARGS",
                                                       "ERR_INVALID_NUM_PARSED",
                                                       "ERR_INVALID_KEYVALP",
                                                       "ERR_INVALID_SIZE"};
  const char* const prefix = version == 2 ? "PMI2_" : "PMI_";
  if (code == -1) return fmt::format("{}FAIL (-1)", prefix);
  if (code == 14) return fmt::format("{}{} (14)", prefix, version == 2 ? "ERR_OTHER" : "ERR_INVALID_KVS");
  if (code < 0 || code >= static_cast<int>(kNames.size())) return fmt::format("PMI-{} code {}", version, code);
  return fmt::format("{}{} ({})", prefix, kNames[static_cast<std::size_t>(code)], code);
}

PmiChannel::PmiChannel(base::UniqueFd fd) : fd_(std::move(fd)) {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) {
    const int number = errno;
    const int given = fd_.release();  // not ours to close: it is not even open
    throw base::system_error(
        fmt::format("using descriptor {} (PMI_FD) as the connection to PMI", given), number,
        "something between the launcher and this program closes inherited descriptors (Python's subprocess needs "
        "close_fds=False), or PMI_FD is left over from another job: unset it",
        ErrorCode::unavailable);
  }
  if (!S_ISSOCK(status.st_mode)) {
    const int given = fd_.release();  // not ours: PMI_FD is stale, and its number was reused
    throw base::system_error(fmt::format("using descriptor {} (PMI_FD) as the connection to PMI", given), ENOTSOCK,
                             "PMI_FD is left over from another program: unset it", ErrorCode::unavailable);
  }
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(fd_.get(), F_SETFD, FD_CLOEXEC) != 0) {
    throw base::system_error("setting up the connection to PMI", errno);
  }
}

void PmiChannel::transmit(std::string_view text, Deadline deadline, const std::string& what) {
  try {
    base::send_all(fd_.get(), std::as_bytes(std::span{text}), deadline, what);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    ErrorDetail detail = error.detail();
    detail.hint = kClosedHint;
    throw Error{std::move(detail)};
  }
}

bool PmiChannel::read_more(Deadline deadline) {
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
      throw base::system_error("reading from the PMI server", number, kClosedHint, ErrorCode::peer_lost);
    }
  }
}

std::optional<std::string> PmiChannel::read_line(std::size_t most_bytes, Deadline deadline) {
  std::size_t end = 0;
  while ((end = received_.find('\n')) == received_.npos) {
    if (received_.size() > most_bytes) throw_pmi_protocol("a line has no end: " + pmi_excerpt(received_));
    if (!read_more(deadline)) return std::nullopt;
  }
  if (end > most_bytes) throw_pmi_protocol("a line is too long: " + pmi_excerpt(received_));
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

}  // namespace ddp::kvs
