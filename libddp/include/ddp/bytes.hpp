// Values that libddp stores and sends without looking into them.
#pragma once

#include <cstddef>
#include <vector>

namespace ddp {

using Bytes = std::vector<std::byte>;

}  // namespace ddp
