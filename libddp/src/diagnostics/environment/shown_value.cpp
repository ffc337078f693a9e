#include "diagnostics/environment/shown_value.hpp"

#include <fmt/format.h>

#include "diagnostics/environment/secret_name.hpp"
#include "diagnostics/environment/secret_text.hpp"

namespace ddp::diagnostics {
namespace {

constexpr std::size_t kLongestValue = 4096;

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

/// PMIx's variables with the namespace, which ddprun makes a secret of the job: "<namespace>", "<namespace>.<rank>",
/// and
/// "<namespace>.<rank>;<address>". Slurm's is the number of the step.
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
  // First the secrets: what marks one may lie beyond the cut.
  const std::string safe = without_secrets(without_namespace(name, value));
  std::string shown = printable(std::string_view(safe).substr(0, kLongestValue));
  if (safe.size() > kLongestValue) shown += fmt::format("... ({} bytes)", value.size());
  return shown;
}

}  // namespace ddp::diagnostics
