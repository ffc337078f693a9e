// Numbers, times and words of options; the texts of their errors.
#include "cli/option_values.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/closest_word.hpp"

namespace ddp::cli {
namespace {

struct Invisible {
  std::string_view bytes;  ///< UTF-8
  std::string_view shown;
};

// What comes with text that is copied from documents and mails, or saved on Windows, and looks like a blank or nothing.
constexpr std::array kInvisible{Invisible{"\r", "\\r"},
                                Invisible{"\xc2\xa0", "\\u00a0"},
                                Invisible{"\xc2\xad", "\\u00ad"},
                                Invisible{"\xe2\x80\x8b", "\\u200b"},
                                Invisible{"\xe2\x80\x8c", "\\u200c"},
                                Invisible{"\xe2\x80\x8d", "\\u200d"},
                                Invisible{"\xe2\x80\x8e", "\\u200e"},
                                Invisible{"\xe2\x80\x8f", "\\u200f"},
                                Invisible{"\xe2\x80\xaf", "\\u202f"},
                                Invisible{"\xe2\x81\xa0", "\\u2060"},
                                Invisible{"\xef\xbb\xbf", "\\ufeff"}};

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const auto* const found = std::find_if(kInvisible.begin(), kInvisible.end(),
                                           [&](const Invisible& each) { return text.starts_with(each.bytes); });
    if (found != kInvisible.end()) {
      shown += found->shown;
      text.remove_prefix(found->bytes.size());
    } else {
      shown += std::iscntrl(static_cast<unsigned char>(text.front())) != 0 ? '?' : text.front();
      text.remove_prefix(1);
    }
  }
  return shown;
}

UsageError usage_error(const std::string& option, const Error& error) {
  return {fmt::format("reading {}", option), error.cause(), error.hint(), error.code()};
}

void reject_value(const std::string& option, std::string_view text, std::string_view why, std::string allowed) {
  throw UsageError{fmt::format("reading {}", option), fmt::format("'{}' {}", printable(text), why), std::move(allowed)};
}

void reject_words(const std::string& cause, const std::string& hint) {
  throw UsageError{kReadingCommandLine, printable(cause), printable(hint)};
}

void reject_combination(std::string cause, std::string hint) {
  throw UsageError{kReadingCommandLine, std::move(cause), std::move(hint), ErrorCode::conflict};
}

int parse_whole(const std::string& option, std::string_view text, int lowest, int highest) {
  const std::string allowed = fmt::format("give a whole number from {} to {}", lowest, highest);
  int value = 0;
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, value);
  if (end != last || status == std::errc::invalid_argument)
    reject_value(option, text, "is not a whole number", allowed);
  if (status == std::errc::result_out_of_range) reject_value(option, text, "is out of range", allowed);
  if (value < lowest) reject_value(option, text, "is too small", allowed);
  if (value > highest) reject_value(option, text, "is too large", allowed);
  return value;
}

int parse_count(const std::string& option, const std::string& text, int highest) {
  return parse_whole(option, text, 1, highest);
}

std::chrono::milliseconds parse_seconds(const std::string& option, std::string_view text, double highest) {
  const std::string allowed = fmt::format("give a number of seconds from 0 to {}", highest);
  double value = 0;
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, value);
  if (end != last || status == std::errc::invalid_argument)
    reject_value(option, text, "is not a number of seconds", allowed);
  // Written so that NaN is refused too.
  if (status != std::errc{} || !(value >= 0 && value <= highest))
    reject_value(option, text, "is out of range", allowed);
  return std::chrono::milliseconds(std::llround(value * 1000));
}

std::chrono::milliseconds parse_positive_seconds(const std::string& option, std::string_view text, double highest) {
  const auto time = parse_seconds(option, text, highest);
  if (time.count() == 0)
    reject_value(option, text, "is too short", fmt::format("give a number of seconds above 0, up to {}", highest));
  return time;
}

const std::string& parse_choice(const std::string& option, const std::string& text,
                                std::span<const std::string> words) {
  const auto word = std::find(words.begin(), words.end(), text);
  if (word == words.end()) throw usage_error(option, base::unknown_word({}, printable(text), words));
  return *word;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace ddp::cli
