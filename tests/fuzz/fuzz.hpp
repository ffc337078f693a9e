// What all fuzz targets need: a check that ends the process, so that libFuzzer keeps the input.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ddp/error.hpp>

inline void require(bool condition) {
  if (!condition) std::abort();
}
