// What ranks have called, by PyTorch's flight recorder: asked of their worker servers, by the pipes that make NCCL's
// ranks write dumps, or read from dumps that they have just written.
#pragma once

#include <string>

#include <ddp/deadline.hpp>

#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::diagnostics {

/// For ranks with PyTorch whose calls libddp's recorder does not have; costs others nothing. Takes at most 4 s. What
/// fails is a note, and the rank's source then torch_unread. @param proc "/proc".
void ask_torch(const std::string& proc, HostFacts& facts, Deadline deadline);

}  // namespace ddp::diagnostics
