// The pickles of plain data that PyTorch's flight recorder writes, as JSON: nothing in them is executed, and what only
// other pickles have is refused.
#pragma once

#include <string>
#include <string_view>

namespace ddp::diagnostics {

/// Dictionaries, lists, tuples (as arrays), strings (what is not printable ASCII as '?'), numbers, truth values, None.
/// Entries named "frames" are left out. Throws Error(protocol): other opcodes, malformed or incomplete data, or more
/// than 32 MiB of JSON.
std::string pickle_to_json(std::string_view pickle);

}  // namespace ddp::diagnostics
