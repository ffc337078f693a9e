// The process that is one node of a PmixNodes job.
#pragma once

#include "base/unique_fd.hpp"
#include "support/pmix_nodes.hpp"

namespace ddp::test {

/// A message with its length in front, as it goes through the socket.
Bytes frame(const NodeMessage& message);
/// Takes the first whole message off @p received; false if there is none yet.
bool take_message(Bytes& received, NodeMessage& message);

struct NodeOrders {
  launcher::JobShape shape;
  std::vector<std::string> command;
  std::vector<std::string> environment;  ///< "NAME=value", in addition to what the server gives
};

/// Starts the server and the ranks and relays until the order to quit. Returns the process's exit code.
int run_node(const NodeOrders& orders, int socket);

}  // namespace ddp::test
