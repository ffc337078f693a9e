// What the doctor prints: findings as text and JSON, rules as text and Markdown.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/rule.hpp"

namespace ddp::tools::doctor {

/// Changes when a field is removed or gets another meaning; new fields do not change it.
inline constexpr std::string_view kDoctorSchema = "ddp-info-doctor/1";

struct Examination {
  const JobFacts* job = nullptr;
  std::size_t rules = 0;  ///< that were applied
  std::vector<Finding> findings{};
  std::chrono::milliseconds time{0};
};

/// The verdict in the first line. Plain ASCII.
std::string format_text(const Examination& examination);
/// One JSON document (RFC 8259) with a line break at the end; docs/reference/diagnostics.md describes it.
std::string format_json(const Examination& examination);
std::string explain(const Rule& rule);
/// All rules, in Markdown.
std::string format_rules();

}  // namespace ddp::tools::doctor
