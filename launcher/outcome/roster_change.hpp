// How the nodes of a generation differ from those before: facts for the line about it, and for the event log.
#pragma once

#include <string>
#include <vector>

namespace ddp::launcher {

struct RosterChange {
  int before = 0;                     ///< nodes of the generation before; 0: there was none
  int survivors = 0;                  ///< how many of these go on
  std::vector<std::string> joined{};  ///< hosts of the others, by node rank
  bool spends_restart = false;
};

}  // namespace ddp::launcher
