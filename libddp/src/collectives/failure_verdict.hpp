// Decides from the members' replies why an operation does not finish. A function of its arguments: no I/O, no clock.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <ddp/backend.hpp>
#include <ddp/operation.hpp>

#include "collectives/group_members.hpp"
#include "collectives/operation_log.hpp"

namespace ddp::collectives {

/// What one member replied when it was asked about an operation.
struct MemberReply {
  int rank = 0;  ///< in the group
  world::PeerReply::Kind kind = world::PeerReply::Kind::not_asked;
  std::optional<StatusAnswer> status{};  ///< only of a reply that could be read
  std::chrono::milliseconds silence{};   ///< of one that gave no answer: how long it has been asked in vain
  bool runs = false;                     ///< of one that gave no answer: its process does, by the kernel of its node
  bool left = false;                     ///< of a refusal: before it, it answered that it is not in the group
};

/// The failure of an operation in the backend, before the others have been asked. @param native the backend's text.
/// @param ranks of the world that the backend suspects.
Error communication_failure(const Operation& operation, std::string native, std::vector<int> ranks = {});

/// A mismatch that this rank has found: a message that does not fit. Naming ranks of the world.
Error unfit_message(const GroupMembers& members, const UnfitMessage& message);

/// The cause, in this order: what another member has decided, differing calls, lost ranks, ranks outside the group,
/// ranks that have not called @p operation, the network. Nothing if the replies do not explain @p local_failure: then
/// asking again may.
/// @param local_failure as communication_failure() made it, or a mismatch that was proved; nothing when time ran out.
std::optional<Error> judge(const GroupMembers& members, const Operation& operation,
                           const std::optional<Error>& local_failure, const std::vector<MemberReply>& replies);

}  // namespace ddp::collectives
