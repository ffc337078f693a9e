// What ranks have called, by PyTorch's flight recorder: asked of their worker servers, by the pipes that make NCCL's
// ranks write dumps, or read from dumps that they have just written.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "diagnostics/hang/rank_facts.hpp"
#include "flight/flight_view.hpp"

namespace ddp::diagnostics {

/// For ranks with PyTorch whose calls libddp's recorder does not have; costs others nothing. Takes at most 4 s. What
/// fails is a note, and the rank's source then torch_unread. @param proc "/proc".
void ask_torch(const std::string& proc, HostFacts& facts, Deadline deadline);

// A dump of PyTorch's flight recorder, as what is known of a rank's process groups.
// Its format: torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x.

/// Adds the groups and operations of @p dump (JSON, or a pickle of plain data) to @p view, which says rank and size of
/// the world. Groups are named "gloo:0 default_pg". Of groups but the first, Gloo does not say who is in them: then
/// members is empty. @param now_ns since 1970, on the clock of the rank's host. Throws Error(protocol).
void add_torch_trace(std::string_view dump, std::int64_t now_ns, flight::FlightView& view);

// Files that a rank's environment names: as the rank sees them, and only its user's. Who looks may be root, and the
// rank anybody's.

/// Opens @p path, absolute or relative to the rank's working directory, in the root directory of process @p pid: links
/// do not lead out of it. Empty unless it is of @p type (S_IFREG, S_IFIFO), belongs to the process's user, and opens
/// without waiting. @param proc "/proc".
base::UniqueFd open_rank_file(const std::string& proc, pid_t pid, const std::string& path, mode_t type, int flags);

}  // namespace ddp::diagnostics
