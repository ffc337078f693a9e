// The backend of groups of one rank: everything is a copy.
#pragma once

#include <ddp/backend.hpp>

namespace ddp::collectives {

extern const BackendPlugin kLocalBackend;

}  // namespace ddp::collectives
