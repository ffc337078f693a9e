// What NCCL's RAS (2.24 and newer) knows of a job's communicators: asked over the port that NCCL opens on each host.
// Protocol: NCCL's src/ras/client.cc and client_support.cc; JSON since 2.28.7, text before.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/deadline.hpp>

#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::diagnostics {

struct RasAddress {
  std::string host = "localhost";
  std::uint16_t port = 28028;
};
/// Of NCCL_RAS_ADDR: "host:port", "[v6]:port", ":port"; empty or malformed: NCCL's default.
RasAddress ras_address(const std::string& text);

/// The answer to STATUS as it came, in JSON where this NCCL can. Throws Error: unavailable, timeout, protocol (another
/// server, or more than 16 MiB).
std::string ask_ras(const RasAddress& address, Deadline deadline);

/// What stays wrong between two answers: communicators of which a process is among @p pids that miss ranks, or whose
/// ranks have called different operations and no further one. Throws Error(protocol) for answers that are malformed.
std::vector<NcclTrouble> ras_troubles(std::string_view first, std::string_view second, const std::vector<pid_t>& pids);

/// Asks twice, where ranks of @p facts have NCCL's library mapped; else costs nothing. What fails is a note.
void ask_nccl(const std::string& proc, HostFacts& facts, Deadline deadline);

}  // namespace ddp::diagnostics
