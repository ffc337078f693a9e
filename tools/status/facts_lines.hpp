// How a helper's facts come through srun, which keeps lines of up to 1 KiB whole (slurmstepd's MAX_MSG_LEN) and mixes
// the parts of longer ones with other nodes'.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::tools::status {

/// What a helper prints: lines of at most 1000 characters.
std::string facts_lines(const diagnostics::HostFacts& facts);

/// Puts together what all helpers have printed. Not thread-safe.
class FactsReader {
 public:
  /// Lines of other kinds are ignored. Those of a host come in order; of several hosts, mixed.
  void add(std::string_view line);

  /// Of the hosts whose lines are all there. Others, and those whose facts are malformed, are in @p notes.
  std::vector<diagnostics::HostFacts> take(std::vector<std::string>& notes);

 private:
  struct Host {
    std::size_t lines = 0;
    std::size_t wanted = 0;
    std::string digits;
  };
  std::map<std::string, Host, std::less<>> hosts_;  ///< by name and process
};

}  // namespace ddp::tools::status
