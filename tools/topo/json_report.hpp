// The report for programs. docs/reference/ddp-info.md describes every field.
#pragma once

#include <string>
#include <string_view>

#include "topo/report_model.hpp"

namespace ddp::tools {

/// Changes when a field is removed or gets another meaning; new fields do not change it.
inline constexpr std::string_view kTopoSchema = "ddp-info-topo/1";

/// One JSON document (RFC 8259) with a line break at the end. Text that is no UTF-8 gets U+FFFD in its place.
std::string format_json(const Report& report);

}  // namespace ddp::tools
