#include "diagnostics/hang/hang_inquiry.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "diagnostics/hang/hang_judge.hpp"

namespace ddp::diagnostics {
namespace {

// As ddp-info status: what waits for less may be slow.
constexpr double kLeastWait = 5;
// Where ranks are ended, their last moment counts.
constexpr double kLeastWaitAtEnd = 1;
// For a program whose operations have failed by their deadline to end.
constexpr std::chrono::seconds kAftermath{30};

}  // namespace

HangInquiry::HangInquiry(std::optional<std::chrono::milliseconds> report_after,
                         std::optional<std::chrono::milliseconds> end_after)
    : after_(report_after && end_after ? std::min(report_after, end_after) : std::max(report_after, end_after)),
      end_after_(end_after) {}

void HangInquiry::note(int node, bool still, Time now) {
  if (still) {
    still_.insert(node);
    return;
  }
  still_.erase(node);
  told_ = false;
  moved_ = true;
  look_again_ = {};
  end_due_.reset();
  if (report_ && !moved_at_) moved_at_ = now;
}

bool HangInquiry::may_be_due(Time now) const {
  const bool due = !told_ || (end_due_ && now >= *end_due_);
  return after_ && due && !asking() && now >= look_again_ && !still_.empty();
}

bool HangInquiry::is_due(const std::set<int>& nodes, Time now) const {
  return may_be_due(now) && !nodes.empty() && std::includes(still_.begin(), still_.end(), nodes.begin(), nodes.end());
}

std::optional<Deadline> HangInquiry::next_look() const {
  if (limit_) return limit_;
  const Time due = told_ ? end_due_.value_or(Time{}) : look_again_;
  return due == Time{} ? std::nullopt : std::optional{Deadline{std::max(due, look_again_)}};
}

void HangInquiry::ask(std::set<int> nodes, Deadline limit) {
  due_ = std::move(nodes);
  limit_ = limit;
  whole_ = true;
  moved_ = false;
  facts_.clear();
}

void HangInquiry::answer(int node, HostFacts facts) {
  if (due_.erase(node) > 0) facts_.push_back(std::move(facts));
}

void HangInquiry::give_up(int node) {
  if (due_.erase(node) > 0) whole_ = false;
}

HangReport HangInquiry::judge(std::string when, double after_s, bool& hangs) {
  const JobObservation job = join_hosts(std::exchange(facts_, {}), whole_ && due_.empty());
  limit_.reset();
  due_.clear();
  const HangVerdict verdict = judge_hang(job, after_s);
  hangs = verdict.answer != HangAnswer::nothing_hangs && !job.ranks.empty();  // they may have ended meanwhile
  hanging_ = verdict.culprits;
  if (hanging_.empty()) {
    for (const RankFacts& each : job.ranks) hanging_.push_back(each.rank);
  }
  return {.when = std::move(when), .text = hang_text(job, verdict), .json = hang_json(job, verdict)};
}

std::optional<HangReport> HangInquiry::conclude_standstill(Time now) {
  const bool ends = end_after_ && (*end_after_ <= *after_ || end_due_);
  const double after_s = std::chrono::duration<double>(ends ? *end_after_ : *after_).count();
  to_end_.clear();
  bool hangs = false;
  HangReport report = judge(fmt::format("no progress for {:g} s", after_s), std::min(after_s / 2, kLeastWait), hangs);
  if (!hangs) {
    if (!moved_) look_again_ = now + *after_;
    return std::nullopt;
  }
  told_ = !moved_;
  moved_at_ = moved_ ? std::optional{now} : std::nullopt;
  if (!moved_ && end_after_ && !ends) end_due_ = now + (*end_after_ - *after_);
  if (!moved_ && ends) {
    end_due_.reset();
    to_end_ = std::move(hanging_);
  }
  report_ = report;
  return report;
}

std::optional<HangReport> HangInquiry::conclude_end() {
  limit_.reset();
  if (facts_.empty()) return std::nullopt;
  bool hangs = false;
  return judge("before the ranks were ended", kLeastWaitAtEnd, hangs);
}

std::optional<HangReport> HangInquiry::report_at_failure(Time now) const {
  const bool over = moved_at_ && now - *moved_at_ > kAftermath;
  return over ? std::nullopt : report_;
}

}  // namespace ddp::diagnostics
