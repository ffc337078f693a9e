#include "diagnostics/environment/redaction.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>

#include <fmt/format.h>

namespace ddp::diagnostics {
namespace {

using std::string_view;

// Secret as a whole word of the name, between underscores.
constexpr std::array<string_view, 17> kSecretWords{"KEY",    "KEYS",  "PSK", "AUTH",   "COOKIE",   "PASS",
                                                   "APIKEY", "TOKEN", "JWT", "DSN",    "BEARER",   "CRED",
                                                   "CREDS",  "PW",    "PWD", "PASSWD", "SESSIONID"};
// Secret at the end of a word: SSHPASS, BINDPW, ACCESSKEY.
constexpr std::array<string_view, 10> kSecretEnds{"PASS",   "PW",    "PWD",           "KEY",       "TOKEN",
                                                  "TOKENS", "CREDS", "AUTHORIZATION", "SESSIONID", "COOKIE"};
// Secret anywhere in the name.
constexpr std::array<string_view, 6> kSecretParts{"SECRET",   "PASSW",      "PASSPHRASE",
                                                  "PASSCODE", "CREDENTIAL", "CONNECTION_STRING"};
// Harmless words with such an end. A PKEY is the number of an InfiniBand partition.
constexpr std::array<string_view, 15> kHarmlessWords{"PKEY",    "PUBKEY",  "PUBLICKEY", "MONKEY",  "DONKEY",
                                                     "TURKEY",  "WHISKEY", "JOCKEY",    "HOTKEY",  "HOTKEYS",
                                                     "COMPASS", "BYPASS",  "SURPASS",   "ASKPASS", "MULTIPASS"};
constexpr std::array<string_view, 2> kHarmlessNames{"PWD", "OLDPWD"};
// libddp's own secrets: an agent's, and the key of a step's store. PMIX_NAMESPACE is judged by its value.
constexpr std::array<string_view, 2> kOwnNames{"DDPRUN_AGENT", "SLURM_DDP_STEP"};

template <class Words>
bool is_one_of(const Words& words, string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string upper_name(string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char letter) {
    return letter == '-' || letter == '.' ? '_' : static_cast<char>(std::toupper(letter));
  });
  return upper;
}

bool is_secret_word(string_view word) {
  if (is_one_of(kHarmlessWords, word)) return false;
  return is_one_of(kSecretWords, word) ||
         std::any_of(kSecretEnds.begin(), kSecretEnds.end(), [&](string_view end) { return word.ends_with(end); });
}

bool has_secret_part(string_view upper) {
  return std::any_of(kSecretParts.begin(), kSecretParts.end(),
                     [&](string_view part) { return upper.find(part) != string_view::npos; });
}

}  // namespace

bool is_secret(string_view name) {
  const std::string upper = upper_name(name);
  if (is_one_of(kHarmlessNames, upper)) return false;
  if (is_one_of(kOwnNames, upper) || has_secret_part(upper)) return true;
  if (upper == "PAT" || upper.ends_with("_PAT")) return true;  // NCCL_PAT_ENABLE is about an algorithm
  for (std::size_t begin = 0; begin <= upper.size();) {
    const auto end = std::min(upper.find('_', begin), upper.size());
    if (is_secret_word(string_view(upper).substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

bool is_secret_parameter(string_view name) {
  const std::string upper = upper_name(name);
  const string_view last = string_view(upper).substr(upper.rfind('_') + 1);  // "key-dim" is not a key
  if (last == "KEYS" || last.ends_with("TOKENS")) return false;              // counts
  return has_secret_part(upper) || is_secret_word(last) || last.ends_with("SIG") || last.ends_with("SIGNATURE");
}

namespace {

using std::string_view;

constexpr string_view kBlanks = " \t\r\n";
constexpr string_view kQuotes = "\"'`";
// Ends a value that has no quotes.
constexpr string_view kValueEnds = " \t\r\n,;&\"'`{}[]<>|";

bool is_in(string_view set, char letter) { return set.find(letter) != string_view::npos; }
bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }
bool is_word(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == '-';
}
std::size_t end_of(string_view text, std::size_t from, string_view ends) {
  return std::min(text.find_first_of(ends, from), text.size());
}

/// Cuts "-----BEGIN ... KEY-----" to its end, but not certificates and public keys.
std::string without_pem(string_view text) {
  constexpr string_view kBegin = "-----BEGIN ";
  constexpr string_view kEnd = "-----END ";
  std::string result;
  for (auto begin = text.find(kBegin); begin != string_view::npos; begin = text.find(kBegin)) {
    const std::size_t label_at = begin + kBegin.size();
    const string_view label = text.substr(label_at, end_of(text, label_at, "-\n") - label_at);
    const auto end_at = text.find(kEnd, label_at);
    auto end = end_at == string_view::npos ? text.size() : text.find("-----", end_at + kEnd.size());
    end = end == string_view::npos ? text.size() : std::min(end + 5, text.size());
    const bool harmless = label.find("CERTIFICATE") != string_view::npos || label.find("PUBLIC") != string_view::npos;
    result += harmless ? text.substr(0, end) : text.substr(0, begin);
    if (!harmless) result += kHiddenValue;
    text.remove_prefix(end);
  }
  result += text;
  return result;
}

/// Where the password or token ends in "user:password@host...": at the last @ that can end it; 0 if there is none.
std::size_t end_of_login(string_view word) {
  const auto authority_end = end_of(word, 0, "/?#");
  const auto sign = word.substr(0, authority_end).rfind('@');
  if (sign != string_view::npos) return sign;
  // The password itself may have a / or #. A port is a number, and an IPv6 address has brackets.
  const auto colon = word.find(':');
  const auto last = word.rfind('@');
  if (last == string_view::npos || colon == string_view::npos || colon + 1 >= authority_end || word.front() == '[')
    return 0;
  const string_view before = word.substr(colon + 1, authority_end - colon - 1);
  return std::all_of(before.begin(), before.end(), is_digit) ? 0 : last;
}

/// "https://user:secret@host" and "https://token@host" without the secret, anywhere in the text.
std::string without_passwords(string_view text) {
  std::string result;
  for (auto at = text.find("://"); at != string_view::npos; at = text.find("://")) {
    at += 3;
    const string_view word = text.substr(at, end_of(text, at, " \t\r\n\"'`<>|") - at);
    const std::size_t sign = word.empty() ? 0 : end_of_login(word);
    result += text.substr(0, at);
    text.remove_prefix(at);
    if (sign == 0) continue;
    const auto colon = word.find(':');
    if (colon < sign) result += word.substr(0, colon + 1);
    result += kHiddenValue;
    text.remove_prefix(sign);
  }
  result += text;
  return result;
}

/// "user:password@host" without a scheme, as in proxy variables, but not "user@host:path", "a:/b@c" or an image's
/// digest.
std::string without_bare_logins(string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t end = end_of(text, 0, " \t\r\n,;\"'`=&<>|");
    const string_view word = text.substr(0, end);
    const auto colon = word.find(':');
    const auto sign = word.rfind('@');
    const bool is_login = colon != string_view::npos && sign != string_view::npos && colon > 0 && colon + 1 < sign &&
                          sign + 1 < word.size() && word[colon + 1] != '/' &&
                          word.substr(0, colon).find_first_of("/@[") == string_view::npos &&
                          !word.substr(sign + 1).starts_with("sha256:") &&
                          std::isalnum(static_cast<unsigned char>(word[sign + 1])) != 0;
    if (is_login) {
      result.append(word.substr(0, colon + 1)).append(kHiddenValue).append(word.substr(sign));
    } else {
      result += word;
    }
    if (end < text.size()) result += text[end];
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

bool is_scheme(string_view word) {
  std::string lower(word);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return lower == "bearer" || lower == "basic" || lower == "digest" || lower == "negotiate" || lower == "token" ||
         lower == "apikey";
}

/// Whether it is an HTTP header's credential, not a word of a sentence.
bool is_credential(string_view word) {
  return word.size() >= 6 &&
         (word.size() >= 20 || word.ends_with('=') || std::any_of(word.begin(), word.end(), is_digit));
}

/// Whether a colon after @p name marks a value: lists of files and modules have colons, too, as "libpass:libc".
bool is_plain_name(string_view name) {
  constexpr std::array<string_view, 8> kNames{"password", "passwd", "token",   "secret",
                                              "api_key",  "apikey", "api-key", "authorization"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

/// Where the value that begins at @p at ends: after its closing quote, or after the word that follows a header's
/// scheme.
std::size_t end_of_value(string_view text, std::size_t at) {
  if (at < text.size() && is_in(kQuotes, text[at])) {
    const char quote = text[at];
    for (std::size_t i = at + 1; i < text.size(); ++i) {
      if (text[i] == '\\') {
        ++i;
      } else if (text[i] == quote) {
        return i + 1;
      }
    }
    return text.size();
  }
  const std::size_t end = end_of(text, at, kValueEnds);
  if (end >= text.size() || !is_scheme(text.substr(at, end - at))) return end;
  const std::size_t next = text.find_first_not_of(kBlanks, end);
  return next == string_view::npos ? end : end_of_value(text, next);
}

/// Hides the values of "sig=x", "password: 'x y'", {"token": "x"}, "--api-key x" and "Authorization: Bearer x".
std::string without_secret_parameters(string_view text) {
  std::string result;
  std::size_t at = 0;
  while (at < text.size()) {
    if (!is_word(text[at])) {
      result += text[at++];
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && (is_word(text[end]) || text[end] == '.')) ++end;
    const string_view word = text.substr(at, end - at);
    const char before = at > 0 ? text[at - 1] : ' ';
    const bool in_path = before == '/' || before == ':';
    const bool is_option = word.starts_with("--");
    result += word;
    at = end;
    if (is_scheme(word) && end < text.size() && text[end] == ' ') {
      const std::size_t value_end = end_of_value(text, end + 1);
      if (is_credential(text.substr(end + 1, value_end - end - 1))) {
        result.append(" ").append(kHiddenValue);
        at = value_end;
      }
      continue;
    }
    const string_view name = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    if (before == '.' || !is_secret_parameter(name)) continue;  // "*.key=01" is a colour
    // the name's closing quote, then the separator
    std::size_t value = end;
    if (value < text.size() && is_in(kQuotes, text[value])) ++value;
    const std::size_t mark = std::min(text.find_first_not_of(kBlanks, value), text.size());
    const bool by_colon = mark < text.size() && text[mark] == ':' && !in_path &&
                          (value > end || end_of(text, mark + 1, " \t\"'") == mark + 1 || is_plain_name(name));
    const bool marked = by_colon || (mark < text.size() && text[mark] == '=');
    if (marked) {
      value = std::min(text.find_first_not_of(kBlanks, mark + 1), text.size());
    } else if (is_option && mark > value && mark < text.size() && text[mark] != '-') {
      value = mark;
    } else {
      continue;
    }
    if (!by_colon && marked && mark == end && value > mark + 1) continue;  // "key= other": empty
    const std::size_t value_end = end_of_value(text, value);
    if (value_end == value) continue;
    result.append(text.substr(end, value - end));
    const bool quoted = is_in(kQuotes, text[value]);
    if (quoted) result += text[value];
    result += kHiddenValue;
    if (quoted) result += text[value];
    at = value_end;
  }
  return result;
}

/// A service's token: its prefix, the fewest characters that follow, and the shortest run of those without - and _.
struct TokenShape {
  string_view start;
  std::size_t least;
  std::size_t least_run;
};
constexpr std::array<TokenShape, 27> kTokenShapes{{
    {"hf_", 16, 16},     {"ghp_", 16, 16},   {"gho_", 16, 16}, {"ghu_", 16, 16},    {"ghs_", 16, 16},
    {"ghr_", 16, 16},    {"npm_", 30, 30},   {"sk-", 16, 16},  {"sk_live_", 16, 0}, {"rk_live_", 16, 0},
    {"AKIA", 16, 16},    {"ASIA", 16, 16},   {"SG.", 30, 12},  {"glpat-", 16, 0},   {"github_pat_", 16, 0},
    {"eyJ", 20, 0},      {"xoxb-", 10, 0},   {"xoxa-", 10, 0}, {"xoxp-", 10, 0},    {"xoxr-", 10, 0},
    {"xoxs-", 10, 0},    {"xapp-", 10, 0},   {"AIza", 30, 0},  {"ya29.", 16, 0},    {"nvapi-", 16, 0},
    {"pypi-AgE", 16, 0}, {"dop_v1_", 16, 0},
}};

std::string without_tokens(string_view text) {
  std::string result;
  std::size_t at = 0;
  while (at < text.size()) {
    const bool begins = at == 0 || !is_word(text[at - 1]);
    const auto shape = !begins ? kTokenShapes.end()
                               : std::find_if(kTokenShapes.begin(), kTokenShapes.end(), [&](const TokenShape& each) {
                                   return text.substr(at).starts_with(each.start);
                                 });
    if (shape == kTokenShapes.end()) {
      result += text[at++];
      continue;
    }
    std::size_t end = at + shape->start.size();
    bool has_digit = false;
    std::size_t run = 0;
    std::size_t longest_run = 0;
    for (; end < text.size() && (is_word(text[end]) || text[end] == '.'); ++end) {
      has_digit |= is_digit(text[end]);
      run = std::isalnum(static_cast<unsigned char>(text[end])) != 0 ? run + 1 : 0;
      longest_run = std::max(longest_run, run);
    }
    const bool is_token =
        end - at >= shape->start.size() + shape->least && longest_run >= shape->least_run && has_digit;
    if (is_token) {
      result += kHiddenValue;
    } else {
      result += text.substr(at, end - at);
    }
    at = end;
  }
  return result;
}

// The secret follows these.
constexpr std::array<string_view, 7> kWebhooks{"hooks.slack.com/",
                                               "discord.com/api/webhooks/",
                                               "discordapp.com/api/webhooks/",
                                               ".webhook.office.com/",
                                               "outlook.office.com/webhook/",
                                               "api.telegram.org/bot",
                                               "chat.googleapis.com/v1/spaces/"};

std::string without_webhooks(std::string text) {
  for (const string_view hook : kWebhooks) {
    for (auto at = text.find(hook); at != std::string::npos; at = text.find(hook, at)) {
      at += hook.size();
      const std::size_t end = end_of(text, at, " \t\r\n\"'`<>|,;");
      if (end > at) text.replace(at, end - at, kHiddenValue);
    }
  }
  return text;
}

}  // namespace

std::string without_secrets(string_view text) {
  std::string safe = without_passwords(without_pem(text));
  safe = without_bare_logins(safe);
  safe = without_secret_parameters(safe);
  return without_webhooks(without_tokens(safe));
}

namespace {

constexpr std::size_t kLongestValue = 4096;

/// Bytes of the UTF-8 character at the beginning; 0 if it is malformed.
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
  // Rejects overlong forms, surrogates and code points beyond Unicode.
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
    // U+0080 to U+009F also control terminals.
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

/// PMIx variables with the namespace, which ddprun makes a secret of the job: "<namespace>", "<namespace>.<rank>" and
/// "<namespace>.<rank>;<address>". Slurm's namespace is the step's number.
std::string without_namespace(std::string_view name, std::string_view value) {
  const bool has_namespace = name == "PMIX_NAMESPACE" || name == "PMIX_ID" || name.starts_with("PMIX_SERVER_URI") ||
                             name == "PMIX_SERVER_NSPACE" || name == "PMIX_PARENT_ID";
  if (!has_namespace || value.empty() || value.starts_with("slurm.pmix.")) return std::string(value);
  const auto address = value.find(';');
  return kHiddenValue + std::string(address == std::string_view::npos ? "" : value.substr(address));
}

}  // namespace

std::string shown_value(std::string_view name, std::string_view value) {
  if (is_secret(name)) return value.empty() ? std::string{} : std::string(kHiddenValue);
  // Hides secrets before cutting: the mark of a secret may lie beyond the cut.
  const std::string safe = without_secrets(without_namespace(name, value));
  std::string shown = printable(std::string_view(safe).substr(0, kLongestValue));
  if (safe.size() > kLongestValue) shown += fmt::format("... ({} bytes)", value.size());
  return shown;
}

}  // namespace ddp::diagnostics
