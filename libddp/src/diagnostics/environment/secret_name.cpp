#include "diagnostics/environment/secret_name.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace ddp::diagnostics {
namespace {

using std::string_view;

// As a word of the name, between underscores.
constexpr std::array<string_view, 17> kSecretWords{"KEY",    "KEYS",  "PSK", "AUTH",   "COOKIE",   "PASS",
                                                   "APIKEY", "TOKEN", "JWT", "DSN",    "BEARER",   "CRED",
                                                   "CREDS",  "PW",    "PWD", "PASSWD", "SESSIONID"};
// At the end of a word: SSHPASS, BINDPW, ACCESSKEY.
constexpr std::array<string_view, 10> kSecretEnds{"PASS",   "PW",    "PWD",           "KEY",       "TOKEN",
                                                  "TOKENS", "CREDS", "AUTHORIZATION", "SESSIONID", "COOKIE"};
// Anywhere in it.
constexpr std::array<string_view, 6> kSecretParts{"SECRET",   "PASSW",      "PASSPHRASE",
                                                  "PASSCODE", "CREDENTIAL", "CONNECTION_STRING"};
// Words that only end so. A PKEY is the number of an InfiniBand partition.
constexpr std::array<string_view, 15> kHarmlessWords{"PKEY",    "PUBKEY",  "PUBLICKEY", "MONKEY",  "DONKEY",
                                                     "TURKEY",  "WHISKEY", "JOCKEY",    "HOTKEY",  "HOTKEYS",
                                                     "COMPASS", "BYPASS",  "SURPASS",   "ASKPASS", "MULTIPASS"};
constexpr std::array<string_view, 2> kHarmlessNames{"PWD", "OLDPWD"};
// libddp's own: an agent's secret, and the key of a step's store. PMIX_NAMESPACE is judged by its value.
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
  const string_view last = string_view(upper).substr(upper.rfind('_') + 1);  // "key-dim" is none
  if (last == "KEYS" || last.ends_with("TOKENS")) return false;              // numbers of them
  return has_secret_part(upper) || is_secret_word(last) || last.ends_with("SIG") || last.ends_with("SIGNATURE");
}

}  // namespace ddp::diagnostics
