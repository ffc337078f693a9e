// What a store says to the user, for tests that expect it.
#pragma once

#include <poll.h>

#include "base/socket.hpp"
#include "store_client.hpp"
#include "store_server/store_server.hpp"

namespace ddp::test {

/// All lines that there are, as one text; waits for the first one. Empty: none came.
inline std::string next_refusal(const store_server::StoreServer& server) {
  if (!base::wait_for(server.refusals_fd(), POLLIN, Deadline::after(kPatience))) return {};
  std::string text;
  for (const std::string& line : server.take_refusals()) text += line + "\n";
  return text;
}

}  // namespace ddp::test
