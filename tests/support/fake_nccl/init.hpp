// Making communicators: what init, split, shrink and grow share.
#pragma once

#include <string>
#include <vector>

#include "comm.hpp"

namespace fake_nccl {

/// init.cc, parseCommConfig and envConfigOverride. @p config may be null: the defaults.
ncclResult_t parse_config(ncclComm_t comm, const ncclConfig_t* config);

/// The room of unique ids; empty: one of them was not made by ncclGetUniqueId.
std::string room_of(const ncclUniqueId* ids, int count);
/// A name that follows from others, the same on all ranks.
std::string derived_name(const std::string& text);
bool make_unique_id(ncclUniqueId* id);

/// What a new communicator does in its own thread: meets the others and compares versions and devices. @p parent may
/// be null; its abort flag counts, too.
ncclResult_t meet(ncclComm_t comm, const std::string& room, ncclComm_t parent, const std::vector<Fault>& faults);

}  // namespace fake_nccl
