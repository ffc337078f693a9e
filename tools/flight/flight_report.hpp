// The analysis of dumps as a few lines of text, and as JSON.
#pragma once

#include <string>

#include "flight/analysis.hpp"
#include "flight/dump_folder.hpp"

namespace ddp::tools::flight {

std::string text_report(const DumpFolder& folder, const Analysis& analysis);

/// Its schema, "ddp-info-flight/1", is in docs/ddp-info.md.
std::string json_report(const DumpFolder& folder, const Analysis& analysis);

}  // namespace ddp::tools::flight
