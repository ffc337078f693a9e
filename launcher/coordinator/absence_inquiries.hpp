// The coordinator's part in finding the ranks that a fence lacks: it asks each node that is not in the fence once, and
// gives all that ask the same answer.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"

namespace ddp::launcher {

/// For one attempt. Nodes are named by node rank. Returns what to send, and sends nothing.
class AbsenceInquiries {
 public:
  using Time = Deadline::Clock::time_point;
  using Outgoing = std::vector<std::pair<int, control::Message>>;

  /// @param first_rank by node rank, and the world size at the end.
  AbsenceInquiries(int epoch, std::vector<int> first_rank) : epoch_(epoch), first_rank_(std::move(first_rank)) {}

  /// @param in_fence nodes of which all ranks are in the fence that the asker's ranks wait in.
  Outgoing ask(int from_node, const control::FindAbsent& question, const std::set<int>& in_fence, Time now);
  Outgoing found(int from_node, const control::AbsentFound& answer, Time now);
  /// When to call time_passed() next.
  std::optional<Deadline> next_deadline() const;
  /// Answers what has been open for too long: all ranks of the nodes that are silent count as absent.
  Outgoing time_passed(Time now);

 private:
  struct Inquiry {
    std::set<int> askers{};
    std::set<int> silent{};                                   ///< nodes that have not answered
    std::map<int, std::vector<control::RankRange>> absent{};  ///< by node
    Deadline limit{Time{}};
    std::optional<control::Encoded> answer{};
    Time answered_at{};
  };
  Outgoing settle(const std::string& name, Inquiry& inquiry, Time now) const;

  int epoch_;
  std::vector<int> first_rank_;
  std::map<std::string, Inquiry> inquiries_;  ///< by the value's name
};

}  // namespace ddp::launcher
