// What a reader makes of a value, where that is not what its writer meant.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "diagnostics/environment/variable_table.hpp"

namespace ddp::diagnostics {

struct ValueFault {
  bool out_of_range = false;  ///< the reader fails or takes its default; else it reads something else, or nothing
  std::string text;           ///< "is read as 0: a number was expected"
};

/// Nothing for a value that means what it says. Never throws, whatever the bytes.
/// @param nccl_version "2.28.9+cuda13.0"; empty: unknown
std::optional<ValueFault> check_value(const Variable& variable, std::string_view value, std::string_view nccl_version);

}  // namespace ddp::diagnostics
