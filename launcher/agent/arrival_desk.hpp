// The node's part in finding the ranks that a fence lacks. Each rank that waits asks about each other one; the desk
// asks the coordinator once for all of the node.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"
#include "pmix_server/modex_inbox.hpp"

namespace ddp::launcher {

/// For one attempt. Not thread-safe.
class ArrivalDesk {
 public:
  using Time = Deadline::Clock::time_point;
  /// @param ask sends a question to the coordinator. @param answer says of an open call that its rank has arrived;
  /// calls for absent ranks stay open until the asker's limit, so that those ranks may still come.
  ArrivalDesk(int epoch, std::function<void(const control::FindAbsent&)> ask, std::function<void(std::uint64_t)> answer)
      : epoch_(epoch), ask_(std::move(ask)), answer_(std::move(answer)) {}

  void add(const ModexCall& call, Time now);
  void found(const control::AbsentFound& found);

 private:
  struct Question {
    Time asked_at{};
    std::optional<std::vector<control::RankRange>> absent{};
    std::vector<ModexCall> waiting{};
  };
  void settle(const ModexCall& call, const std::vector<control::RankRange>& absent) const;

  int epoch_;
  std::function<void(const control::FindAbsent&)> ask_;
  std::function<void(std::uint64_t)> answer_;
  std::map<std::string, Question> questions_;  ///< by the value's name
};

/// Ascending ranks as ranges.
std::vector<control::RankRange> ranges_of(const std::vector<int>& ranks);

}  // namespace ddp::launcher
