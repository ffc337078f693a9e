// The dumps of one job, out of a folder that may have other files, damaged ones and those of other jobs.
#pragma once

#include <string>
#include <vector>

#include "flight/rank_dump.hpp"

namespace ddp::tools::flight {

struct DumpFolder {
  std::string job;                      ///< "job17.0"; with ", attempt 1" after a restart
  std::vector<RankDump> dumps{};        ///< by rank, one of each
  std::vector<std::string> left_out{};  ///< what was not used, and why: a line each
};

/// Reads all *.json in @p path. Of several jobs the one that wrote last is meant. Throws Error: system where the folder
/// cannot be read, not_found where it has no dump.
DumpFolder read_dump_folder(const std::string& path);

/// What belongs to one job, of all dumps that were read.
DumpFolder choose_job(std::vector<RankDump> dumps);

}  // namespace ddp::tools::flight
