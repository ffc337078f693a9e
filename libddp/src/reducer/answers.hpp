// Answers of ranks to one question, for messages: equal ones together.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ddp/process_group.hpp>

namespace ddp::reducer {

/// Each answer once, with the world ranks that gave it; the smallest rank's first. @p answers: by rank in the group.
std::vector<std::pair<std::string, std::vector<int>>> group_answers(const ProcessGroup& group,
                                                                    const std::vector<std::string>& answers);

}  // namespace ddp::reducer
