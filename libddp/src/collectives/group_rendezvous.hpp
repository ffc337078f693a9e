// Makes groups: that of a world over the launcher's key-value store, others over the group that they are part of.
#pragma once

#include <memory>
#include <span>

#include "collectives/group_engine.hpp"

namespace ddp::collectives {

/// ProcessGroup::new_group: null for ranks that are not in @p wanted.
std::shared_ptr<GroupEngine> make_subgroup(ProcessGroup& parent, std::span<const int> wanted);

}  // namespace ddp::collectives
