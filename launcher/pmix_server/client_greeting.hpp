// How much of a PMIx client's first message has arrived, without taking it from the socket.
#pragma once

#include <cstddef>

namespace ddp::launcher {

enum class ClientGreeting {
  incomplete,
  whole,
  none,  ///< the client has closed, or says what no PMIx client says
};

/// A PMIx client of any version from 2 to 6 begins with a header of 16 bytes: two numbers, then the size of what
/// follows, 4 bytes in the order of the host (ptl_types.h, pmix_ptl_hdr_t). Names, versions and a credential follow.
inline constexpr std::size_t kGreetingHeaderBytes = 16;
/// Real ones have some hundred bytes. More than a socket buffers would never be complete.
inline constexpr std::size_t kLongestGreetingBytes = 32 * 1024;

ClientGreeting look_at_greeting(int connection) noexcept;

}  // namespace ddp::launcher
