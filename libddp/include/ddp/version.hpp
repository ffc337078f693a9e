// The version of these headers. The build reads it from here, so it is written once.
#pragma once

#define DDP_VERSION_MAJOR 0
#define DDP_VERSION_MINOR 1
#define DDP_VERSION_PATCH 0
#define DDP_VERSION_STRING "0.1.0"

namespace ddp {

/// The version of the loaded library, which may be newer than the headers a program was built with.
const char* version() noexcept;

}  // namespace ddp
