// The packets of a rendezvous on their socket, with the file that goes along with one.
#pragma once

#include <cstdint>

#include "base/unique_fd.hpp"
#include "collectives/shm/join_message.hpp"

namespace ddp::collectives::shm {

/// Sends one packet; false if the other side is gone. The queue has room for the few of a rendezvous.
bool send(int socket, const JoinMessage& message, int file = -1);

enum class Received : std::uint8_t { message, nothing, closed, nonsense, no_descriptor };

/// Takes a packet if there is one, with the file that came along.
Received receive(int socket, JoinMessage& message, base::UniqueFd* file = nullptr);

}  // namespace ddp::collectives::shm
