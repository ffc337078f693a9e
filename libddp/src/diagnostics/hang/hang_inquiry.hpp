// When none of a job's ranks gets on any more, who is asked what they do, and what follows from the answers. Times and
// facts come in, so that it can be tested without processes.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "diagnostics/hang/hang_report.hpp"
#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::diagnostics {

/// Of one attempt. Nodes are named by node rank.
class HangInquiry {
 public:
  using Time = Deadline::Clock::time_point;

  /// @param report_after how long ranks must stand still to be told of. @param end_after likewise, for to_end().
  /// Nothing: never.
  explicit HangInquiry(std::optional<std::chrono::milliseconds> report_after = {},
                       std::optional<std::chrono::milliseconds> end_after = {});

  /// How long ranks must stand still for note(): the shorter of both; nothing: standstills are not looked for.
  std::optional<std::chrono::milliseconds> looks_after() const { return after_; }

  /// None of the node's ranks gets on any more, or one does again.
  void note(int node, bool still, Time now);
  /// Some node stands still, and this has not been told, or has lasted for the longer time, too.
  bool may_be_due(Time now) const;
  /// Whether all of @p nodes stand still, too.
  bool is_due(const std::set<int>& nodes, Time now) const;
  /// When is_due() may become true without an event.
  std::optional<Deadline> next_look() const;

  /// @p nodes are asked, and have until @p limit.
  void ask(std::set<int> nodes, Deadline limit);
  /// Answers are awaited.
  bool asking() const { return limit_.has_value(); }
  std::optional<Deadline> limit() const { return limit_; }
  void answer(int node, HostFacts facts);
  /// It will not answer.
  void give_up(int node);
  bool complete(Time now) const { return asking() && (due_.empty() || now >= limit_->when()); }

  /// Of a standstill: what is to be told; nothing where nothing hangs, which is then looked at again later.
  std::optional<HangReport> conclude_standstill(Time now);
  /// By the last conclude_standstill(): ranks that have hung for long enough to be ended; without a verdict, all.
  const std::vector<int>& to_end() const { return to_end_; }
  /// Of ranks that are about to be ended; nothing where no node has answered.
  std::optional<HangReport> conclude_end();

  /// What the failure that ends the attempt now followed from, perhaps: the last standstill that was told, unless it
  /// was over long before.
  std::optional<HangReport> report_at_failure(Time now) const;

 private:
  HangReport judge(std::string when, double after_s, bool& hangs);

  std::optional<std::chrono::milliseconds> after_;
  std::optional<std::chrono::milliseconds> end_after_;
  std::set<int> still_;
  std::optional<Time> end_due_;  ///< of a standstill that was told: when it has lasted for end_after_
  std::vector<int> hanging_;     ///< by the last judge()
  std::vector<int> to_end_;
  bool told_ = false;
  bool moved_ = false;  ///< since the nodes were asked
  Time look_again_{};
  std::optional<Time> moved_at_;  ///< after the report
  std::optional<HangReport> report_;
  std::optional<Deadline> limit_;
  std::set<int> due_;
  bool whole_ = true;  ///< all that were asked have answered
  std::vector<HostFacts> facts_;
};

}  // namespace ddp::diagnostics
