// The version that the library says it is, unless FAKE_NCCL_VERSION does.
#include "settings.hpp"

namespace fake_nccl {

const int kDefaultVersion = FAKE_NCCL_DEFAULT_VERSION;

}  // namespace fake_nccl
