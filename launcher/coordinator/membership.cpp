#include "coordinator/membership.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::launcher {
namespace {

/// The program without its folder, which the agents of one role must agree on.
std::string program_name(const control::Hello& hello) { return hello.program.substr(hello.program.rfind('/') + 1); }

}  // namespace

Membership::Membership(MembershipRules rules, Deadline::Clock::time_point now)
    : rules_(std::move(rules)), join_deadline_(now + rules_.join_timeout) {}

std::string Membership::join(int agent, const control::Hello& hello, Deadline::Clock::time_point now) {
  if (hello.version != rules_.version) {
    return fmt::format("ddprun on {} is version {}, but the coordinator's is {}: install the same on all nodes",
                       hello.host, hello.version, rules_.version);
  }
  if (hello.run_id != rules_.run_id) {
    return fmt::format("the agent on {} belongs to run '{}', but this is run '{}': give all agents the same --rdzv-id",
                       hello.host, hello.run_id, rules_.run_id);
  }
  if (num_members() >= rules_.max_nodes) {
    return fmt::format("the job already has its {} nodes", rules_.max_nodes);
  }
  for (const Member& member : members_) {
    if (hello.order >= 0 && member.hello.order == hello.order) {
      return fmt::format("{} and {} both say that they are node {}: give each its own --node-rank", member.hello.host,
                         hello.host, hello.order);
    }
    if (member.hello.role == hello.role && program_name(member.hello) != program_name(hello)) {
      return fmt::format("{} runs '{}', but {} runs '{}': start the same program on all nodes (or give --role)",
                         member.hello.host, member.hello.program, hello.host, hello.program);
    }
  }
  members_.push_back({.agent = agent, .hello = hello, .id = next_id_++});
  if (enough() && !last_call_) last_call_ = Deadline{now + rules_.last_call};
  return {};
}

bool Membership::has_joined(int agent) const {
  return std::any_of(members_.begin(), members_.end(), [&](const Member& each) { return each.agent == agent; });
}

std::optional<int> Membership::agent_of(std::int64_t order) const {
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const Member& each) { return each.hello.order == order; });
  return found != members_.end() ? std::optional{found->agent} : std::nullopt;
}

bool Membership::leave(int agent) {
  const bool member = std::erase_if(members_, [&](const Member& each) { return each.agent == agent; }) > 0;
  if (!enough()) last_call_.reset();
  return member;
}

bool Membership::give_up_one() {
  if (rules_.max_nodes <= rules_.min_nodes) return false;
  --rules_.max_nodes;
  return true;
}

std::optional<Roster> Membership::next(Deadline::Clock::time_point now) {
  const bool first = generation_ == 0;
  const bool full = num_members() == rules_.max_nodes;
  const bool last_call_over = last_call_ && now >= last_call_->when();
  if (!enough() || (first && !full && !last_call_over)) return std::nullopt;
  return Roster{.generation = generation_++, .nodes = in_order()};
}

bool Membership::failed(Deadline::Clock::time_point now) const { return !enough() && now >= join_deadline_.when(); }

std::optional<Deadline> Membership::next_deadline() const {
  if (num_members() == rules_.max_nodes) return std::nullopt;
  return last_call_ ? last_call_ : join_deadline_;
}

std::string Membership::describe() const {
  std::vector<std::string> hosts;
  for (const Member& member : in_order()) hosts.push_back(member.hello.host);
  const std::string wanted = rules_.min_nodes == rules_.max_nodes
                                 ? fmt::format("{}", rules_.max_nodes)
                                 : fmt::format("{} to {}", rules_.min_nodes, rules_.max_nodes);
  return fmt::format("{} of {} nodes {} joined{}{}", hosts.size(), wanted, hosts.size() == 1 ? "has" : "have",
                     hosts.empty() ? "" : ": ", fmt::join(hosts, ", "));
}

std::vector<Member> Membership::in_order() const {
  std::vector<Member> sorted = members_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Member& a, const Member& b) {
    if (a.hello.order >= 0 && b.hello.order >= 0) return a.hello.order < b.hello.order;
    if (a.hello.order >= 0 || b.hello.order >= 0) return a.hello.order >= 0;
    return ::strverscmp(a.hello.host.c_str(), b.hello.host.c_str()) < 0;
  });
  return sorted;
}

}  // namespace ddp::launcher
