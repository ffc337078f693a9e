#include "coordinator/membership_plan.hpp"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::launcher {
namespace {

/// The program without its folder, which the agents of one role must agree on.
std::string program_name(const control::Hello& hello) { return hello.program.substr(hello.program.rfind('/') + 1); }

// A host that is lost again before so much time has passed is taken for unreliable.
constexpr std::chrono::minutes kLossMemory{10};
constexpr std::chrono::seconds kFirstRest{10};
constexpr std::chrono::seconds kLongestRest{600};

/// Nodes that said their order (SLURM_PROCID, --node-rank) come first, by allocation, then in that order; then by host
/// name, with numbers compared as numbers (node2 before node10); then in the order in which they joined.
void sort(std::vector<Member>& members) {
  std::stable_sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
    if (a.hello.order >= 0 && b.hello.order >= 0) {
      const int older = ::strverscmp(a.hello.allocation.c_str(), b.hello.allocation.c_str());
      return older != 0 ? older < 0 : a.hello.order < b.hello.order;
    }
    if (a.hello.order >= 0 || b.hello.order >= 0) return a.hello.order >= 0;
    return ::strverscmp(a.hello.host.c_str(), b.hello.host.c_str()) < 0;
  });
}

}  // namespace

std::string MembershipRules::range() const {
  return min_nodes < max_nodes ? fmt::format("{}:{}", min_nodes, max_nodes) : fmt::format("{}", max_nodes);
}

MembershipPlan::MembershipPlan(MembershipRules rules, Time now)
    : rules_(std::move(rules)),
      target_(rules_.max_nodes),
      not_coming_(rules_.absent),
      join_deadline_(now + rules_.join_timeout) {}

template <class Test>
const Member* MembershipPlan::find(const Test& test) const {
  for (const std::optional<Member>& slot : slots_) {
    if (slot && test(*slot)) return &*slot;
  }
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), test);
  return found != waiting_.end() ? &*found : nullptr;
}

// ---- events ----------------

std::string MembershipPlan::join(int agent, const control::Hello& hello, Time now) {
  if (std::string why = why_not(hello); !why.empty()) return why;
  enter(agent, hello);
  waiting_.push_back({.agent = agent,
                      .hello = hello,
                      .id = next_id_++,
                      .rests_until = rests_until(hello.host, now),
                      .warm_by = hello.warms ? now + rules_.warm_limit : Time{}});
  last_join_ = now;
  if (!first_join_ && !hello.warms) first_join_ = now;
  if (enough() && !last_call_) last_call_ = Deadline{now + rules_.last_call};
  return {};
}

bool MembershipPlan::warmed(int agent, Time now) {
  for (Member& each : waiting_) {
    if (each.agent != agent || each.warm_by <= now) continue;
    each.warm_by = {};
    last_join_ = now;
    if (!first_join_) first_join_ = now;
    return true;
  }
  return false;
}

void MembershipPlan::enter(int agent, const control::Hello& hello) {
  agents_.insert(agent);
  if (hello.order >= 0) orders_.emplace(hello.allocation, hello.order);
  Program& program = programs_[hello.role];
  program.name = program_name(hello);
  ++program.members;
}

/// From the indexes.
void MembershipPlan::remove(int agent) {
  if (agents_.erase(agent) == 0) return;
  const control::Hello& hello = find([agent](const Member& each) { return each.agent == agent; })->hello;
  orders_.erase({hello.allocation, hello.order});
  if (const auto program = programs_.find(hello.role); --program->second.members == 0) programs_.erase(program);
}

/// Whether a member has its order, or another program in its role.
bool MembershipPlan::contradicts(const control::Hello& hello) const {
  if (hello.order >= 0 && orders_.contains({hello.allocation, hello.order})) return true;
  const auto program = programs_.find(hello.role);
  return program != programs_.end() && program->second.name != program_name(hello);
}

std::string MembershipPlan::why_not(const control::Hello& hello) const {
  if (hello.version != rules_.version) {
    return fmt::format("ddprun on {} is version {}, but the coordinator's is {}: install the same on all nodes",
                       hello.host, hello.version, rules_.version);
  }
  if (hello.run_id != rules_.run_id) {
    return fmt::format("the agent on {} belongs to run '{}', but this is run '{}': give all agents the same --rdzv-id",
                       hello.host, hello.run_id, rules_.run_id);
  }
  if (phase_ == Phase::live && !rules_.open() && rules_.spares == 0)
    return fmt::format("run '{}' has already started; nodes cannot join a running job", rules_.run_id);
  if (phase_ != Phase::gathering && hello.nproc == 0) return fmt::format("{} cannot start ranks", hello.host);
  if (std::string why = why_full(); !why.empty()) return why;
  if (std::string why = why_other_settings(hello); !why.empty()) return why;
  if (!contradicts(hello)) return {};
  const auto same_order_as = [&hello](const control::Hello& other) {
    return hello.order >= 0 && other.order == hello.order && other.allocation == hello.allocation;
  };
  const Member* other = find([&](const Member& each) {
    const bool same_order = same_order_as(each.hello);
    return same_order || (each.hello.role == hello.role && program_name(each.hello) != program_name(hello));
  });
  if (other == nullptr) return {};
  if (same_order_as(other->hello))
    return fmt::format("{} and {} both say that they are node {}: give each its own --node-rank", other->hello.host,
                       hello.host, hello.order);
  return fmt::format("{} runs '{}', but {} runs '{}': start the same program on all nodes (or give --role)",
                     other->hello.host, other->hello.program, hello.host, hello.program);
}

std::string MembershipPlan::why_full() const {
  if (num_members() < most_members()) return {};
  const int nodes = most_spares_ ? target_ : rules_.max_nodes;
  const int spares = most_members() - nodes;
  return fmt::format("the job already has its {} node{}{}", nodes, nodes == 1 ? "" : "s",
                     spares == nodes && spares > 1 ? " and as many spares"
                     : spares > 0                  ? fmt::format(" and {} spare{}", spares, spares == 1 ? "" : "s")
                                                   : "");
}

std::string MembershipPlan::why_other_settings(const control::Hello& hello) const {
  for (const std::string& theirs : hello.settings) {
    const std::string name = theirs.substr(0, theirs.find('=') + 1);
    const auto ours = std::find_if(rules_.settings.begin(), rules_.settings.end(),
                                   [&name](const std::string& each) { return each.starts_with(name); });
    if (ours != rules_.settings.end() && *ours != theirs)
      return fmt::format("{} has {}, but the ddprun that leads has {}: give the same, or give it to that one alone",
                         hello.host, theirs, *ours);
  }
  return {};
}

bool MembershipPlan::lost(int agent) {
  remove(agent);
  bool member = std::erase_if(waiting_, [&](const Member& each) { return each.agent == agent; }) > 0;
  for (std::optional<Member>& slot : slots_) {
    if (!slot || slot->agent != agent) continue;
    if (phase_ == Phase::live) lost_.push_back(slot->hello.host);
    slot.reset();
    member = true;
  }
  leaving_.erase(agent);
  std::erase_if(released_, [agent](const Release& each) { return each.agent == agent; });
  if (!enough()) last_call_.reset();
  return member;
}

void MembershipPlan::leave(int agent, const std::string& asked_by) {
  const Member* member = find([agent](const Member& each) { return each.agent == agent; });
  if (member == nullptr) return;
  const bool waits =
      std::any_of(waiting_.begin(), waiting_.end(), [&](const Member& each) { return each.agent == agent; });
  // A guest whose allocation Slurm ends is missing like one that was lost.
  const bool wished = !asked_by.empty() || !is_guest(agent);
  if (wished && !leaving_.contains(agent)) goal_ = std::max(goal_ - 1, rules_.min_nodes);
  if (phase_ == Phase::live && !waits) {
    leaving_[agent] = !asked_by.empty();
    if (!asked_by.empty()) asked_by_ = asked_by;
    return;
  }
  if (!waits) left_.push_back(member->hello.host);
  release_leaver(agent, !asked_by.empty());
}

void MembershipPlan::release_leaver(int agent, bool by_wish) {
  const control::Hello hello = find([agent](const Member& each) { return each.agent == agent; })->hello;
  lost(agent);
  released_.push_back(
      {.agent = agent, .allocation = by_wish ? hello.allocation : "", .slurm_node = by_wish ? hello.slurm_node : ""});
}

ResizeAnswer MembershipPlan::resize(const ResizeWish& wish, Time now) {
  const auto plural = [](std::size_t count, const char* one, const char* more) { return count == 1 ? one : more; };
  if (phase_ == Phase::gathering) return {.text = "the job has not started"};
  const int nodes = wish.nodes > 0 ? wish.nodes : target_;
  if (nodes < rules_.min_nodes || nodes > rules_.max_nodes)
    return {.text = fmt::format("the job was started with --nnodes={}, so it cannot have {}", rules_.range(), nodes)};
  if (const int most = rules_.most_members() - nodes; wish.spares > most)
    return {.text = fmt::format("the job can have {} spare{}, not {}", most, most == 1 ? "" : "s", wish.spares)};
  if (phase_ == Phase::live && !admits_) return {.text = "a rank has ended with success, so the job is about to end"};
  const int wanted = (wish.nodes > 0 ? nodes : std::min(nodes, num_members())) + std::max(wish.spares, 0);
  if (wanted > num_members() && !rules_.open())
    return {.text = fmt::format("{} node{} left, and no other can join", num_members(),
                                plural(static_cast<std::size_t>(num_members()), " is", "s are"))};
  target_ = nodes;
  if (wish.spares >= 0) most_spares_ = wish.spares;
  const std::vector<std::string> leaving = let_surplus_leave(wish);
  goal_ = nodes + most_spares_.value_or(rules_.spares);
  const std::vector<std::string> parking = to_park();
  const std::vector<std::string> joining = to_join(now);
  if (announced_ || !parking.empty() || !joining.empty()) asked_by_ = wish.by;
  std::vector<std::string> parts;
  const auto say = [&](const std::vector<std::string>& hosts, const char* one, const char* more) {
    if (!hosts.empty()) parts.push_back(fmt::format("{} {}", fmt::join(hosts, ", "), plural(hosts.size(), one, more)));
  };
  say(leaving, "is to leave", "are to leave");
  say(parking, "is to wait as a spare", "are to wait as spares");
  say(joining, "is to join", "are to join");
  if (parts.empty())
    parts.push_back(fmt::format("{} node{} part", num_active(), num_active() == 1 ? " takes" : "s take"));
  if (num_active() - static_cast<int>(leaving_.size()) + static_cast<int>(joining.size()) < nodes)
    parts.push_back(fmt::format("up to {} will, once other nodes have joined", nodes));
  return {.taken = true, .text = fmt::format("{}", fmt::join(parts, "; "))};
}

/// Those that wait go first, the last one before the others; then those of the last slots.
std::vector<std::string> MembershipPlan::let_surplus_leave(const ResizeWish& wish) {
  const int surplus = num_members() - static_cast<int>(leaving_.size()) - most_members();
  if (!most_spares_ || surplus <= 0) return {};
  std::vector<Member> order{waiting_.rbegin(), waiting_.rend()};
  for (auto slot = slots_.rbegin(); slot != slots_.rend(); ++slot) {
    if (*slot && !leaving_.contains((*slot)->agent)) order.push_back(**slot);
  }
  std::erase_if(order, [&](const Member& each) { return each.agent == wish.stays; });
  std::vector<std::string> hosts;
  for (const Member& each : order) {
    if (static_cast<int>(hosts.size()) == surplus) break;
    leave(each.agent, wish.by);
    hosts.insert(hosts.begin(), each.hello.host);
  }
  return hosts;
}

/// Of the last slots, the number that is too many.
std::vector<std::string> MembershipPlan::to_park() const {
  std::vector<std::string> hosts;
  for (auto slot = slots_.rbegin(); slot != slots_.rend() && static_cast<int>(hosts.size()) < -room(); ++slot) {
    if (*slot && !leaving_.contains((*slot)->agent)) hosts.insert(hosts.begin(), (*slot)->hello.host);
  }
  return hosts;
}

std::vector<std::string> MembershipPlan::to_join(Time now) const {
  std::vector<std::string> hosts;
  for (const Member& each : waiting_) {
    if (static_cast<int>(hosts.size()) < room() && each.rests_until <= now) hosts.push_back(each.hello.host);
  }
  return hosts;
}

void MembershipPlan::park() {
  for (auto slot = slots_.rbegin(); slot != slots_.rend() && room() < 0; ++slot) {
    if (!*slot) continue;
    parked_.insert((*slot)->agent);
    waiting_.insert(waiting_.begin(), **slot);
    slot->reset();
  }
}

bool MembershipPlan::will_not_come() {
  if (rules_.max_nodes + rules_.spares - not_coming_ <= rules_.min_nodes) return false;
  ++not_coming_;
  return true;
}

void MembershipPlan::ended(GenerationEnd end, Time now) {
  phase_ = Phase::between;
  for (const auto& [agent, by_wish] : std::exchange(leaving_, {})) {
    left_.push_back(find([agent = agent](const Member& each) { return each.agent == agent; })->hello.host);
    release_leaver(agent, by_wish);
  }
  park();
  goes_on_ = may_follow(end, now);
  note_losses(now);
  const bool early = now - began_ < rules_.crash_loop.within;
  if (!early) short_lives_ = 0;
  if (early && end != GenerationEnd::resized && !spends_restart(end)) ++short_lives_;
  end_ = end;
  join_deadline_ = Deadline{now + rules_.join_timeout};
}

void MembershipPlan::note_losses(Time now) {
  for (const std::string& host : std::exchange(lost_, {})) {
    Losses& losses = losses_[host];
    if (now - losses.last > kLossMemory) losses.count = 0;
    ++losses.count;
    losses.last = now;
  }
}

MembershipPlan::Time MembershipPlan::rests_until(const std::string& host, Time now) const {
  const auto known = losses_.find(host);
  if (rules_.crash_loop.generations == 0 || known == losses_.end() || now - known->second.last > kLossMemory) return {};
  if (known->second.count < 2) return {};
  const int doublings = std::min(known->second.count - 2, 6);  // more would be longer than the longest
  return known->second.last + std::min(kFirstRest * (1 << doublings), kLongestRest);
}

// ---- decisions ----------------

bool MembershipPlan::spends_restart(GenerationEnd end) const {
  return end == GenerationEnd::rank_failed || (end == GenerationEnd::node_failed && !rules_.elastic());
}

/// The generation that ends now is one too many.
bool MembershipPlan::is_crash_loop(Time now) const {
  const CrashLoopLimit& limit = rules_.crash_loop;
  return limit.generations > 0 && now - began_ < limit.within && short_lives_ + 1 >= limit.generations;
}

bool MembershipPlan::may_follow(GenerationEnd end, Time now) const {
  if (spends_restart(end)) return restarts_used_ < rules_.max_restarts;
  return end == GenerationEnd::resized || !is_crash_loop(now);
}

bool MembershipPlan::may_leave(const std::vector<int>& agents) const {
  if (!rules_.elastic()) return false;
  std::map<int, bool> leaving = leaving_;
  for (const int agent : agents) {
    if (!has_joined(agent)) return false;
    leaving[agent] = true;
  }
  return rules_.replaceable || num_members() - static_cast<int>(leaving.size()) >= rules_.min_nodes;
}

Decision MembershipPlan::decide(Time now) {
  if (!released_.empty()) {
    Release next = std::move(released_.back());
    released_.pop_back();
    return next;
  }
  switch (phase_) {
    case Phase::gathering: return decide_gathering(now);
    case Phase::live: return decide_live(now);
    case Phase::between: return decide_between(now);
  }
  return WaitUntil{};
}

Decision MembershipPlan::decide_gathering(Time now) {
  const bool full = num_members() + not_coming_ >= rules_.max_nodes + rules_.spares;
  if (enough() && (full || now >= last_call_->when())) return start(now);
  if (!enough() && now >= join_deadline_.when()) return End{End::Why::not_enough_came};
  return WaitUntil{enough() ? last_call_ : join_deadline_};
}

Decision MembershipPlan::decide_live(Time now) {
  const bool joins = admits_ && num_ready(now) > num_active() && room() > 0;
  const bool leaves = !leaving_.empty() && !leave_announced_;
  const bool parks = admits_ && room() < 0;
  if (announced_ && !leave_announced_ && !leaves && !joins && !parks) {
    announced_ = false;
    first_join_.reset();
    return Withdraw{};
  }
  if (!leaves && (announced_ || (!joins && !parks)))
    return WaitUntil{admits_ && room() > 0 ? next_ready(now) : std::nullopt};
  const bool places_left = num_ready(now) - num_active() < room();  // else more could not take part
  if (!leaves && !parks && places_left) {
    Time due = first_join_.value_or(now) + rules_.scale_up_limit;
    if (!any_warming(now)) due = std::min(due, last_join_ + rules_.scale_up_delay);
    if (now < due) return WaitUntil{Deadline{due}};
  }
  announced_ = true;
  leave_announced_ = leave_announced_ || leaves;
  Announce announce{.joining = to_join(now), .parking = to_park()};
  for (const std::optional<Member>& slot : slots_) {
    if (slot && leaving_.contains(slot->agent)) announce.leaving.push_back(slot->hello.host);
  }
  return announce;
}

Decision MembershipPlan::decide_between(Time now) {
  if (!goes_on_) return End{spends_restart(*end_) ? End::Why::nothing_follows : End::Why::crash_loop};
  if (num_ready(now) >= rules_.min_nodes) return start(now);
  const bool another_may_come = rules_.elastic() && (rules_.replaceable || (rules_.expands && more_may_come_));
  if (!enough() && !another_may_come) return End{End::Why::too_few_left};
  if (now >= join_deadline_.when()) return End{End::Why::no_other_came};
  const auto rested = next_ready(now);
  return WaitUntil{rested ? earlier(*rested, join_deadline_) : join_deadline_};
}

Start MembershipPlan::start(Time now) {
  RosterChange change{.before = static_cast<int>(slots_.size()),
                      .survivors = num_active(),
                      .left = std::exchange(left_, {}),
                      .asked_by = std::exchange(asked_by_, {}),
                      .spends_restart = end_ && spends_restart(*end_)};
  // Of a list of nodes, the last are the spares; where nodes come one by one, those that came last.
  const bool listed =
      std::all_of(waiting_.begin(), waiting_.end(), [](const Member& each) { return each.hello.order >= 0; });
  if (generation_ == 0 && rules_.spares > 0 && listed) sort(waiting_);
  std::vector<Member> newcomers;
  std::erase_if(waiting_, [&, places = room()](const Member& each) {
    const bool takes_part = static_cast<int>(newcomers.size()) < places && each.rests_until <= now;
    if (takes_part) newcomers.push_back(each);
    return takes_part;
  });
  sort(newcomers);
  std::set<int> new_ids;
  for (const Member& each : newcomers) new_ids.insert(each.id);
  auto next = newcomers.begin();
  for (std::optional<Member>& slot : slots_) {
    if (!slot && next != newcomers.end()) slot = *next++;
  }
  std::erase_if(slots_, [](const std::optional<Member>& slot) { return !slot; });
  slots_.insert(slots_.end(), next, newcomers.end());
  Roster roster{.generation = generation_++, .nodes = {}};
  for (const std::optional<Member>& slot : slots_) {
    if (new_ids.contains(slot->id)) change.joined.push_back(slot->hello.host);
    roster.nodes.push_back(*slot);
  }
  std::vector<int> parked;
  for (const Member& each : waiting_) {
    if (!parked_.contains(each.agent)) continue;
    change.parked.push_back(each.hello.host);
    parked.push_back(each.agent);
  }
  parked_.clear();
  if (roster.generation == 0) goal_ = std::max(num_members(), rules_.grow_to + rules_.spares);
  if (change.spends_restart) ++restarts_used_;
  phase_ = Phase::live;
  began_ = now;
  announced_ = leave_announced_ = false;
  admits_ = true;
  first_join_.reset();
  return {.roster = std::move(roster), .change = std::move(change), .parked = std::move(parked)};
}

// ---- facts ----------------

int MembershipPlan::num_active() const {
  return static_cast<int>(
      std::count_if(slots_.begin(), slots_.end(), [](const std::optional<Member>& slot) { return slot.has_value(); }));
}

int MembershipPlan::num_members() const { return num_active() + static_cast<int>(waiting_.size()); }

int MembershipPlan::missing() const {
  if (!rules_.expands || phase_ == Phase::gathering || (phase_ == Phase::live && !admits_)) return 0;
  const int wanted = std::min(goal_, target_ + most_spares_.value_or(rules_.spares));
  return std::max(0, wanted - num_members() + static_cast<int>(leaving_.size()));
}

int MembershipPlan::num_ready(Time now) const {
  return num_active() + static_cast<int>(std::count_if(waiting_.begin(), waiting_.end(),
                                                       [&](const Member& each) { return ready_at(each) <= now; }));
}

bool MembershipPlan::any_warming(Time now) const {
  return std::any_of(waiting_.begin(), waiting_.end(), [now](const Member& each) { return each.warm_by > now; });
}

std::optional<Deadline> MembershipPlan::next_ready(Time now) const {
  std::optional<Deadline> first;
  for (const Member& each : waiting_) {
    if (ready_at(each) <= now) continue;
    first = first ? earlier(*first, Deadline{ready_at(each)}) : Deadline{ready_at(each)};
  }
  return first;
}

std::chrono::milliseconds MembershipPlan::rest_of(int agent, Time now) const {
  if (losses_.empty()) return {};
  const Member* member = find([agent](const Member& each) { return each.agent == agent; });
  if (member == nullptr || member->rests_until <= now) return {};
  return std::chrono::ceil<std::chrono::milliseconds>(member->rests_until - now);
}

std::vector<int> MembershipPlan::agents_of(const std::string& allocation) const {
  std::vector<int> agents;
  find([&](const Member& each) {
    if (each.hello.allocation == allocation) agents.push_back(each.agent);
    return false;
  });
  return agents;
}

std::vector<int> MembershipPlan::agents_on(const std::string& host) const {
  std::vector<int> agents;
  find([&](const Member& each) {
    if (each.hello.host == host) agents.push_back(each.agent);
    return false;
  });
  return agents;
}

bool MembershipPlan::is_guest(int agent) const {
  const Member* member = find([agent](const Member& each) { return each.agent == agent; });
  if (member == nullptr || rules_.allocation.empty()) return false;
  return !member->hello.allocation.empty() && member->hello.allocation != rules_.allocation;
}

std::vector<int> MembershipPlan::waiting() const {
  std::vector<int> agents;
  for (const Member& each : waiting_) agents.push_back(each.agent);
  return agents;
}

bool MembershipPlan::is_spare(int agent) const {
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(), [agent](const Member& each) { return each.agent == agent; });
  return found != waiting_.end() && found - waiting_.begin() >= room();
}

std::optional<int> MembershipPlan::agent_of(std::int64_t order) const {
  const Member* member = find([order](const Member& each) { return each.hello.order == order; });
  return member != nullptr ? std::optional{member->agent} : std::nullopt;
}

std::string MembershipPlan::describe() const {
  std::vector<Member> all;
  find([&all](const Member& each) {
    all.push_back(each);
    return false;
  });
  sort(all);
  std::vector<std::string> hosts;
  for (const Member& member : all) hosts.push_back(member.hello.host);
  const int most = rules_.max_nodes + rules_.spares - rules_.absent;
  const std::string wanted = rules_.min_nodes < most - rules_.spares ? fmt::format("{} to {}", rules_.min_nodes, most)
                                                                     : fmt::format("{}", most);
  return fmt::format("{} of {} nodes {} joined{}{}", hosts.size(), wanted, hosts.size() == 1 ? "has" : "have",
                     hosts.empty() ? "" : ": ", fmt::join(hosts, ", "));
}

}  // namespace ddp::launcher
