// Values that libddp stores and sends without interpreting them.
#pragma once

#include <cstddef>
#include <vector>

namespace ddp {

using Bytes = std::vector<std::byte>;  ///< values of key-value stores, and other data without a type

}  // namespace ddp
