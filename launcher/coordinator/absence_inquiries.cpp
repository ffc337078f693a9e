#include "coordinator/absence_inquiries.hpp"

#include <chrono>
#include <map>
#include <utility>

namespace ddp::launcher {

AbsenceInquiries::Outgoing AbsenceInquiries::ask(int from_node, const control::FindAbsent& question,
                                                 const std::set<int>& in_fence, Time now) {
  std::erase_if(inquiries_, [&](const auto& each) {
    return each.second.answer && now - each.second.answered_at >= control::kAbsentFresh;
  });
  Inquiry& inquiry = inquiries_[question.name];
  if (inquiry.answer) return {{from_node, *inquiry.answer}};
  const bool open = !inquiry.askers.empty();
  inquiry.askers.insert(from_node);
  if (open) return {};
  inquiry.limit = Deadline{now + std::chrono::milliseconds{question.limit_ms}};
  const control::Encoded asked = control::encode_once(question);
  Outgoing outgoing;
  for (int node = 0; node + 1 < static_cast<int>(first_rank_.size()); ++node) {
    if (in_fence.contains(node)) continue;
    inquiry.silent.insert(node);
    outgoing.emplace_back(node, asked);
  }
  return inquiry.silent.empty() ? settle(question.name, inquiry, now) : outgoing;
}

AbsenceInquiries::Outgoing AbsenceInquiries::found(int from_node, const control::AbsentFound& answer, Time now) {
  const auto open = inquiries_.find(answer.name);
  if (open == inquiries_.end() || open->second.silent.erase(from_node) == 0) return {};
  const auto node = static_cast<std::size_t>(from_node);
  for (const control::RankRange& range : answer.ranks) {
    const bool its_own = range.first >= first_rank_[node] && range.count <= first_rank_[node + 1] - range.first;
    if (its_own) open->second.absent[from_node].push_back(range);
  }
  return open->second.silent.empty() ? settle(answer.name, open->second, now) : Outgoing{};
}

AbsenceInquiries::Outgoing AbsenceInquiries::settle(const std::string& name, Inquiry& inquiry, Time now) const {
  for (const int node : std::exchange(inquiry.silent, {})) {
    const int first = first_rank_[static_cast<std::size_t>(node)];
    inquiry.absent[node] = {{.first = first, .count = first_rank_[static_cast<std::size_t>(node) + 1] - first}};
  }
  control::AbsentFound all{.epoch = epoch_, .name = name};
  for (const auto& [node, ranges] : std::exchange(inquiry.absent, {})) {
    for (const control::RankRange& range : ranges) {
      const bool follows = !all.ranks.empty() && range.first == all.ranks.back().first + all.ranks.back().count;
      follows ? void(all.ranks.back().count += range.count) : all.ranks.push_back(range);
    }
  }
  inquiry.answer = control::encode_once(all);
  inquiry.answered_at = now;
  Outgoing outgoing;
  for (const int node : std::exchange(inquiry.askers, {})) outgoing.emplace_back(node, *inquiry.answer);
  return outgoing;
}

std::optional<Deadline> AbsenceInquiries::next_deadline() const {
  std::optional<Deadline> next;
  for (const auto& [name, inquiry] : inquiries_) {
    if (!inquiry.answer) next = next ? earlier(*next, inquiry.limit) : inquiry.limit;
  }
  return next;
}

AbsenceInquiries::Outgoing AbsenceInquiries::time_passed(Time now) {
  Outgoing outgoing;
  for (auto& [name, inquiry] : inquiries_) {
    if (inquiry.answer || now < inquiry.limit.when()) continue;
    for (auto& parcel : settle(name, inquiry, now)) outgoing.push_back(std::move(parcel));
  }
  return outgoing;
}

}  // namespace ddp::launcher
