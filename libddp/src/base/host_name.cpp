#include "base/host_name.hpp"

#include <unistd.h>

#include <array>

namespace ddp::base {

std::string host_name() {
  std::array<char, 256> name{};  // HOST_NAME_MAX is 64 on Linux
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace ddp::base
