// Hides secrets in what is shown or written: by variable name, and by form in text.
#pragma once

#include <string>
#include <string_view>

namespace ddp::diagnostics {

// Which variables, options and parameters hold secrets, by their names.

/// Whether values of variables of this name are secrets: *_TOKEN, *_KEY, *PASSWORD*, DBPASS and the like, and libddp's
/// own.
bool is_secret(std::string_view name);

/// The same for a parameter of a URL, a connection string, a header or an option: "sig", "AccountKey", "api-key".
bool is_secret_parameter(std::string_view name);

// Secrets within a text: in URLs, headers, options, JSON, keys in PEM, and tokens that their beginning gives away.

inline constexpr const char* kHiddenValue = "(hidden)";

/// The text with kHiddenValue in place of each secret that it shows by its form.
std::string without_secrets(std::string_view text);

// What of a variable's value may be shown: no secrets, and nothing that disturbs a terminal or a JSON document.

/// The value, with kHiddenValue in place of a secret, also of those within it; control characters and what is no UTF-8
/// as \xNN; shortened to 4096 bytes.
std::string shown_value(std::string_view name, std::string_view value);

}  // namespace ddp::diagnostics
