#include "diagnostics/environment/shown_value.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

namespace ddp::diagnostics {
namespace {

constexpr std::size_t kLongestValue = 4096;

// As a word of the name, between underscores.
constexpr std::array<std::string_view, 11> kSecretWords{"KEY",    "KEYS",  "PSK", "AUTH", "COOKIE", "PASS",
                                                        "APIKEY", "TOKEN", "JWT", "PAT",  "DSN"};
// Anywhere in it.
constexpr std::array<std::string_view, 5> kSecretParts{"SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL",
                                                       "CONNECTION_STRING"};

/// Bytes of the UTF-8 character at the beginning; 0: it is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80U) return 1;
  const std::size_t length = first >= 0xf0U && first < 0xf5U   ? 4
                             : first >= 0xe0U && first < 0xf0U ? 3
                             : first >= 0xc2U && first < 0xe0U ? 2
                                                               : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
  }
  // Overlong forms, surrogates, and what is beyond Unicode.
  const unsigned char second = byte(1);
  if ((first == 0xe0U && second < 0xa0U) || (first == 0xedU && second >= 0xa0U)) return 0;
  if ((first == 0xf0U && second < 0x90U) || (first == 0xf4U && second >= 0x90U)) return 0;
  return length;
}

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    const std::size_t length = first < 0x20U || first == 0x7fU ? 0 : utf8_length(text);
    // U+0080 to U+009F control terminals, too.
    const bool control = length == 2 && first == 0xc2U && static_cast<unsigned char>(text[1]) < 0xa0U;
    if (length == 0 || control) {
      result += fmt::format("\\x{:02x}", first);
      text.remove_prefix(1);
      continue;
    }
    result += text.substr(0, length);
    text.remove_prefix(length);
  }
  return result;
}

/// Of a URL's query or a connection string: "sig", "AccountKey", "access_token".
bool is_secret_parameter(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char letter) { return letter == '-' ? '_' : static_cast<char>(std::toupper(letter)); });
  return is_secret(upper) || upper.ends_with("KEY") || upper.ends_with("SIG") || upper.ends_with("SIGNATURE") ||
         upper.ends_with("PWD");
}

/// "?sv=1&sig=(hidden)" and "AccountName=a;AccountKey=(hidden)": what follows such a name up to the next parameter.
std::string without_secret_parameters(std::string_view value) {
  std::string result;
  constexpr std::string_view kSeparators = "?&; \t\n";
  while (!value.empty()) {
    const auto end = std::min(value.find_first_of(kSeparators), value.size());
    const std::string_view parameter = value.substr(0, end);
    const auto equals = parameter.find('=');
    if (equals != std::string_view::npos && equals + 1 < parameter.size() &&
        is_secret_parameter(parameter.substr(0, equals))) {
      result.append(parameter.substr(0, equals + 1)).append(kHiddenValue);
    } else {
      result += parameter;
    }
    if (end < value.size()) result += value[end];
    value.remove_prefix(std::min(end + 1, value.size()));
  }
  return result;
}

/// "https://user:secret@host" and "https://token@host" without the secret, wherever that is in the value.
std::string without_passwords(std::string_view value) {
  std::string result;
  for (auto at = value.find("://"); at != std::string_view::npos; at = value.find("://")) {
    at += 3;
    const std::string_view authority =
        value.substr(at, std::min(value.find_first_of("/?# \t\n", at), value.size()) - at);
    const auto colon = authority.find(':');
    const auto sign = authority.rfind('@');
    result += value.substr(0, at);
    value.remove_prefix(at);
    if (sign == std::string_view::npos) continue;
    if (colon < sign) result += authority.substr(0, colon + 1);
    result += kHiddenValue;
    value.remove_prefix(sign);
  }
  result += value;
  return result;
}

}  // namespace

bool is_secret(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  if (std::any_of(kSecretParts.begin(), kSecretParts.end(),
                  [&](std::string_view part) { return upper.find(part) != std::string::npos; })) {
    return true;
  }
  if (upper.ends_with("TOKEN") || upper.ends_with("TOKENS") || upper.ends_with("_PWD")) return true;
  for (std::size_t begin = 0; begin <= upper.size();) {
    const auto end = std::min(upper.find('_', begin), upper.size());
    const std::string_view word = std::string_view(upper).substr(begin, end - begin);
    if (std::find(kSecretWords.begin(), kSecretWords.end(), word) != kSecretWords.end()) return true;
    begin = end + 1;
  }
  return false;
}

std::string shown_value(std::string_view name, std::string_view value) {
  if (is_secret(name)) return value.empty() ? std::string{} : std::string(kHiddenValue);
  // First the secrets: what marks one may lie beyond the cut.
  const std::string safe = without_secret_parameters(without_passwords(value));
  std::string shown = printable(std::string_view(safe).substr(0, kLongestValue));
  if (safe.size() > kLongestValue) shown += fmt::format("... ({} bytes)", value.size());
  return shown;
}

}  // namespace ddp::diagnostics
