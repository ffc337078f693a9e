// Any bytes as text of an XML 1.0 document.
#pragma once

#include <string>
#include <string_view>

namespace ddp::tools {

/// Escapes & < > " and '. What XML cannot hold becomes '?': control characters, and bytes that are not UTF-8.
std::string escape_xml(std::string_view text);

}  // namespace ddp::tools
