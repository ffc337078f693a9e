// Slurm's compressed lists of node names: "n[0-3,7],gpu[01-04]-ib,login".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp::topology {

/// The names in order, numbers with the leading zeros that they have in the list. At most @p limit names.
/// Throws Error(protocol) when brackets or ranges make no sense or the list is longer than the limit.
std::vector<std::string> expand_hostlist(std::string_view text, std::size_t limit = 100'000);

}  // namespace ddp::topology
