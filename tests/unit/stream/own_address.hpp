// Loopback addresses that no other test program uses at the same time, for tests of given ports.
#pragma once

namespace ddp::test {

/// Of this process; @p last from 1 to 254 tells several apart.
inline std::string own_address(int last = 1) {
  const int process = static_cast<int>(::getpid());
  return fmt::format("127.{}.{}.{}", 1 + process / 256 % 254, process % 256, last);
}

}  // namespace ddp::test
