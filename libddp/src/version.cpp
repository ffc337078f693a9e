#include <ddp/version.hpp>

namespace ddp {

const char* version() noexcept { return DDP_VERSION_STRING; }

}  // namespace ddp
