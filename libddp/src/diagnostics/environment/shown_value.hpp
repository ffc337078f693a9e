// What of a variable's value may be shown: no secrets, and nothing that disturbs a terminal or a JSON document.
#pragma once

#include <string>
#include <string_view>

namespace ddp::diagnostics {

/// The value, with kHiddenValue in place of a secret, also of those within it; control characters and what is no UTF-8
/// as \xNN; shortened to 4096 bytes.
std::string shown_value(std::string_view name, std::string_view value);

}  // namespace ddp::diagnostics
