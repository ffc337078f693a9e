#include "base/host_name.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace ddp::base {

std::string host_name() {
  std::array<char, 256> name{};  // HOST_NAME_MAX is 64 on Linux
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

bool same_host_name(std::string_view one, std::string_view other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

}  // namespace ddp::base
