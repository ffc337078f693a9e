// What a communicator that ends leaves to be forgotten.
#pragma once

#include "comm.hpp"

namespace fake_nccl {

/// register.cc, ncclRegCleanup: an end of a communicator deregisters what it knows.
void forget_all(ncclComm_t comm);

}  // namespace fake_nccl
