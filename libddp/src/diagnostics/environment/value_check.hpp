// What a reader makes of a value, where that is not what its writer meant.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "diagnostics/environment/variable_table.hpp"

namespace ddp::diagnostics {

struct ValueFault {
  bool out_of_range = false;  ///< else it is read as something else, or not at all
  std::string text;           ///< "is read as 0: a number was expected"
};

/// Nothing for a value that means what it says. Never throws, whatever the bytes.
std::optional<ValueFault> check_value(const Variable& variable, std::string_view value);

}  // namespace ddp::diagnostics
