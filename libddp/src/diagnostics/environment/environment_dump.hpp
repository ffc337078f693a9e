// Brings the environments of all ranks to rank 0, over the job's store, and writes them.
#pragma once

#include <string>
#include <string_view>

#include <ddp/diagnostics.hpp>
#include <ddp/key_value_store.hpp>

#include "diagnostics/environment/rank_environment.hpp"

namespace ddp::diagnostics {

/// Of this process, without what has nothing to do with training.
RankEnvironment describe_process(int rank);

/// This rank's part; a fence must follow.
void put_environment(KeyValueStore& store, std::string_view key, const RankEnvironment& own);

/// After that fence: what all ranks have put. A rank that has put nothing, or no message, is a finding.
EnvironmentReport collect_environments(KeyValueStore& store, std::string_view key, Deadline deadline);

/// @param destination "stderr": the table; else a file that is replaced by the JSON document. Throws Error(system).
void write_report(const EnvironmentReport& report, const std::string& destination);

}  // namespace ddp::diagnostics
