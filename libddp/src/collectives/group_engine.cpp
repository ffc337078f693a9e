#include "collectives/group_engine.hpp"

namespace ddp::collectives {

GroupEngine::GroupEngine(GroupMembers members, std::vector<GroupBackend> backends, ConnectOptions connect,
                         std::chrono::milliseconds timeout)
    : connect_(std::move(connect)),
      driver_(std::make_shared<GroupDriver>(std::move(members), std::move(backends), timeout)) {
  driver_->start_progress();
}

GroupEngine::~GroupEngine() { driver_->close(); }

std::vector<std::string> GroupEngine::backend_names() const {
  std::vector<std::string> names;
  for (const Lane& lane : driver_->lanes()) names.push_back(lane.carrier.name);
  return names;
}

}  // namespace ddp::collectives
