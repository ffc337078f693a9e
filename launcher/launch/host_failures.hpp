// What is said of the hosts of a list whose agents will not come: all in one line, hosts that failed in the same way
// together, so that a list with three dead hosts needs one attempt to mend, not three.
#pragma once

#include <span>
#include <string>

namespace ddp::launcher {

struct HostFailure {
  std::string host;
  std::string cause;  ///< may name the host
  std::string hint;   ///< what to do; empty: nothing is known
};

/// "starting ddprun on n1, n2: CAUSE; HINT; on n7: CAUSE; HINT", in the order of the list. @p failures is not empty.
std::string describe(std::span<const HostFailure> failures);

}  // namespace ddp::launcher
