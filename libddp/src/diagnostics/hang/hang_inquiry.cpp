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

void HangInquiry::note(int node, bool still, Time now) {
  if (still) {
    still_.insert(node);
    return;
  }
  still_.erase(node);
  told_ = false;
  moved_ = true;
  look_again_ = {};
  if (report_ && !moved_at_) moved_at_ = now;
}

bool HangInquiry::may_be_due(Time now) const {
  return after_ && !told_ && !asking() && now >= look_again_ && !still_.empty();
}

bool HangInquiry::is_due(const std::set<int>& nodes, Time now) const {
  return may_be_due(now) && !nodes.empty() && std::includes(still_.begin(), still_.end(), nodes.begin(), nodes.end());
}

std::optional<Deadline> HangInquiry::next_look() const {
  if (limit_) return limit_;
  if (look_again_ == Time{} || told_) return std::nullopt;
  return Deadline{look_again_};
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
  return {.when = std::move(when), .text = hang_text(job, verdict), .json = hang_json(job, verdict)};
}

std::optional<HangReport> HangInquiry::conclude_standstill(Time now) {
  const double after_s = std::chrono::duration<double>(*after_).count();
  bool hangs = false;
  HangReport report = judge(fmt::format("no progress for {:g} s", after_s), std::min(after_s / 2, kLeastWait), hangs);
  if (!hangs) {
    if (!moved_) look_again_ = now + *after_;
    return std::nullopt;
  }
  told_ = !moved_;
  moved_at_ = moved_ ? std::optional{now} : std::nullopt;
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
