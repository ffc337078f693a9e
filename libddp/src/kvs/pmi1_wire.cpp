#include "kvs/pmi1_wire.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "kvs/pmi_value.hpp"

namespace ddp::kvs {
namespace {

// Below it, a value would have more header than bytes.
constexpr std::size_t kLeastTextBytes = 160;
constexpr std::size_t kMostKvsNameBytes = 512;
constexpr std::string_view kPutForm = "cmd=put kvsname= key= value=\n";

bool fits_in_pmi1_line(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return c == ' ' || c == '\n' || c == '\0'; });
}

std::size_t read_pmi1_limit(const PmiMessage& answer, std::string_view name) {
  const int value = answer.number(name).value_or(0);
  if (value <= 0) throw_pmi_protocol(fmt::format("the answer to get_maxes has no {}", name));
  return static_cast<std::size_t>(value);
}

}  // namespace

std::string encode_pmi1(const PmiMessage& message) {
  std::string line = "cmd=" + message.command;
  bool fits = fits_in_pmi1_line(message.command);
  for (const auto& [key, value] : message.fields) {
    fits = fits && fits_in_pmi1_line(key) && fits_in_pmi1_line(value);
    line += " " + key + "=" + value;
  }
  if (!fits || line.size() >= kPmi1MostLineBytes) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "sending " + message.command + " to the PMI-1 server",
                 .cause = "a field has a blank, a newline or a zero byte, or the line is too long"}};
  }
  return line + "\n";
}

PmiMessage parse_pmi1(std::string_view line) {
  PmiMessage message;
  if (line.size() > kPmi1MostLineBytes) throw_pmi_protocol("a line is too long: " + pmi_excerpt(line));
  if (line.find('\0') != line.npos) throw_pmi_protocol("a line has a zero byte: " + pmi_excerpt(line));
  while (!line.empty()) {
    const std::string_view word = line.substr(0, line.find(' '));
    line.remove_prefix(std::min(line.size(), word.size() + 1));
    if (word.empty()) continue;
    const auto equals = word.find('=');
    if (message.command.empty()) {
      if (!word.starts_with("cmd=") || word.size() == equals + 1)
        throw_pmi_protocol("a line does not begin with a command: " + pmi_excerpt(word));
      message.command = word.substr(equals + 1);
    } else if (equals != word.npos && equals > 0) {
      message.fields.emplace_back(word.substr(0, equals), word.substr(equals + 1));
    } else if (!message.fields.empty()) {
      message.fields.back().second += " ";
      message.fields.back().second += word;
    } else {
      throw_pmi_protocol("a line has a word without a field: " + pmi_excerpt(word));
    }
  }
  if (message.command.empty()) throw_pmi_protocol("a line is empty");
  return message;
}

Pmi1Maxes read_pmi1_maxes(const PmiMessage& answer) {
  const Pmi1Maxes maxes{.key_bytes = read_pmi1_limit(answer, "keylen_max"),
                        .value_bytes = read_pmi1_limit(answer, "vallen_max")};
  if (maxes.key_bytes <= kPmiMostKeyBytes || pmi1_text_bytes(maxes, 0) < kLeastTextBytes) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "PMI-1 command get_maxes",
                 .cause = fmt::format("the server keeps keys of {} and values of {} bytes, too few", maxes.key_bytes,
                                      maxes.value_bytes)}};
  }
  return maxes;
}

std::size_t pmi1_text_bytes(const Pmi1Maxes& maxes, std::size_t kvs_name_bytes) {
  if (kvs_name_bytes > kMostKvsNameBytes) throw_pmi_protocol("the name of the key-value space is too long");
  const std::size_t line = std::min(std::max<std::size_t>(maxes.value_bytes, 1024), kPmi1MostLineBytes) - 1;
  const std::size_t room = line - kPutForm.size() - kvs_name_bytes - kPmiMostKeyBytes;
  return std::min(maxes.value_bytes - 1, room);
}

Pmi1Address parse_pmi_port(std::string_view text) {
  const auto colon = text.rfind(':');
  const auto port = colon == text.npos ? std::nullopt : parse_number<std::uint16_t>(text.substr(colon + 1));
  if (!port || *port == 0 || colon == 0) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "reading the environment variable PMI_PORT",
                 .cause = fmt::format("{} is not HOST:PORT", pmi_excerpt(text)),
                 .hint = "the launcher sets it: leave it as it is"}};
  }
  return {.host = std::string(text.substr(0, colon)), .port = *port};
}

}  // namespace ddp::kvs
