#include "command/helper_lines.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>

namespace ddp::tools {
namespace {

constexpr std::string_view kWord = "ddp-info-helper";
constexpr std::size_t kDigits = 800;  // beside a host name of at most 64 characters and three numbers
constexpr std::size_t kMostLines = 100'000;

int hex_digit(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

std::optional<Bytes> bytes_of(std::string_view digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  Bytes bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const int high = hex_digit(digits[i]);
    const int low = hex_digit(digits[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<std::byte>(high << 4 | low));
  }
  return bytes;
}

}  // namespace

std::string helper_lines(std::string_view host, std::span<const std::byte> message) {
  std::string digits;
  for (const std::byte each : message) {
    digits += "0123456789abcdef"[std::to_integer<unsigned>(each) >> 4U];
    digits += "0123456789abcdef"[std::to_integer<unsigned>(each) & 15U];
  }
  const std::size_t count = (digits.size() + kDigits - 1) / kDigits;
  std::string lines;
  for (std::size_t i = 0; i < count; ++i) {
    lines += fmt::format("{} {}:{} {} {} {}\n", kWord, host, ::getpid(), i, count,
                         std::string_view(digits).substr(i * kDigits, kDigits));
  }
  return lines;
}

void HelperLines::add(std::string_view line) {
  std::istringstream words{std::string(line)};
  std::string word;
  std::string from;
  std::size_t number = 0;
  std::size_t count = 0;
  std::string digits;
  if (!(words >> word >> from >> number >> count >> digits) || word != kWord || count > kMostLines) return;
  Host& host = hosts_[from];
  host.wanted = count;
  if (number != host.lines) return;  // one before it is lost: the host stays incomplete
  ++host.lines;
  host.digits += digits;
}

std::vector<Bytes> HelperLines::take(std::vector<std::string>& notes) {
  std::vector<Bytes> found;
  for (const auto& [from, host] : hosts_) {
    if (host.lines != host.wanted) {
      notes.push_back(fmt::format("of {} only {} of {} lines came", from, host.lines, host.wanted));
      continue;
    }
    if (std::optional<Bytes> message = bytes_of(host.digits)) {
      found.push_back(std::move(*message));
    } else {
      notes.push_back(fmt::format("a line of {} is torn", from));
    }
  }
  hosts_.clear();
  return found;
}

}  // namespace ddp::tools
