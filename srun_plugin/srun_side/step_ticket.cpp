#include "srun_side/step_ticket.hpp"

#include <charconv>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::srun_plugin {
namespace {

constexpr std::string_view kTicketVersion = "5";
constexpr std::size_t kFields = 14;
constexpr std::size_t kSecretDigits = 64;

[[noreturn]] void fail(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = fmt::format("reading {}", kTicketVariable),
               .cause = std::move(cause),
               .hint = "do the host of srun and this node have the same version of libddp's plugin?"}};
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> fields;
  while (true) {
    const auto end = text.find(';');
    fields.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return fields;
    text.remove_prefix(end + 1);
  }
}

bool parse_flag(std::string_view text) {
  if (text != "0" && text != "1") fail(fmt::format("'{}' is neither 0 nor 1", text));
  return text == "1";
}

template <class Number = std::uint16_t>
Number parse_number(std::string_view text, std::string_view what) {
  Number number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || status != std::errc{} || end != text.data() + text.size())
    fail(fmt::format("'{}' is no {}", text, what));
  return number;
}

void read_word(PluginOptions& options, Option option, std::string_view word) {
  try {
    set_word(options, option, {}, word);
  } catch (const Error&) {
    fail(fmt::format("'{}' is not known", word));
  }
}

}  // namespace

std::string encode(const StepTicket& ticket) {
  return fmt::format("{};{};{};{};{};{};{};{};{};{};{};{};{:d};{:d}", kTicketVersion, ticket.port, ticket.secret,
                     to_string(ticket.options.bind), to_string(ticket.options.gpus), ticket.options.backend,
                     ticket.patience_seconds, ticket.version,
                     ticket.options.metrics_port ? std::to_string(*ticket.options.metrics_port) : "none",
                     ticket.options.metrics_address, ticket.progress_seconds, ticket.options.hang_report_after_s,
                     ticket.options.verbose, ticket.pmi_available);
}

StepTicket parse_ticket(std::string_view text) {
  const auto fields = split(text);
  if (fields.front() != kTicketVersion)
    fail(fmt::format("its version is '{}', not {}", fields.front().substr(0, 16), kTicketVersion));
  if (fields.size() != kFields) fail(fmt::format("it has {} fields, not {}", fields.size(), kFields));
  StepTicket ticket;
  ticket.options.enabled = true;
  ticket.port = parse_number(fields[1], "port");
  ticket.secret = fields[2];
  const bool hexadecimal = ticket.secret.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!hexadecimal || ticket.secret.size() != (ticket.port != 0 ? kSecretDigits : 0)) fail("its secret is none");
  read_word(ticket.options, Option::bind, fields[3]);
  read_word(ticket.options, Option::gpus, fields[4]);
  read_word(ticket.options, Option::backend, fields[5]);
  ticket.patience_seconds = parse_number(fields[6], "number of seconds");
  constexpr std::string_view kVersionLetters = "0123456789abcdefghijklmnopqrstuvwxyz.-+~";
  if (fields[7].empty() || fields[7].find_first_not_of(kVersionLetters) != std::string_view::npos)
    fail(fmt::format("'{}' is no version of libddp", fields[7]));
  ticket.version = fields[7];
  ticket.options.verbose = parse_flag(fields[12]);
  ticket.pmi_available = parse_flag(fields[13]);
  if (fields[8] != "none") ticket.options.metrics_port = parse_number(fields[8], "port");
  constexpr std::string_view kAddressLetters = "0123456789abcdefABCDEF.:";
  if (fields[9].empty() || fields[9].find_first_not_of(kAddressLetters) != std::string_view::npos)
    fail(fmt::format("'{}' is no address", fields[9]));
  ticket.options.metrics_address = fields[9];
  ticket.progress_seconds = parse_number<std::uint32_t>(fields[10], "number of seconds");
  ticket.options.hang_report_after_s = parse_number<std::uint32_t>(fields[11], "number of seconds");
  return ticket;
}

}  // namespace ddp::srun_plugin
