// How a job ended, as JSON: what --report-json and --event-log have in common.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

#include "diagnostics/metrics/event_log.hpp"
#include "outcome/job_outcome.hpp"

namespace ddp::launcher {

using Json = nlohmann::ordered_json;
using diagnostics::time_text;

/// Exit code or signal; nulls for a rank that has not ended.
Json rank_end_json(const std::optional<RankEnd>& end);

Json node_json(const NodeFailure& node);

/// Its kind, and where: the first entry of the list that the kind names. Null for success.
Json root_cause_json(const JobOutcome& outcome);

/// Why a generation began, and on which nodes.
Json generation_json(const GenerationFacts& generation);

/// An object of all else; docs/reference/ddprun.md describes its fields. Lists all failures.
Json outcome_json(const JobOutcome& outcome);

}  // namespace ddp::launcher
