// Which variables, options and parameters hold secrets, by their names.
#pragma once

#include <string_view>

namespace ddp::diagnostics {

/// Whether values of variables of this name are secrets: *_TOKEN, *_KEY, *PASSWORD*, DBPASS and the like, and libddp's
/// own.
bool is_secret(std::string_view name);

/// The same for a parameter of a URL, a connection string, a header or an option: "sig", "AccountKey", "api-key".
bool is_secret_parameter(std::string_view name);

}  // namespace ddp::diagnostics
