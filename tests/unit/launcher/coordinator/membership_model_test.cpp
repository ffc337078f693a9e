// Random events against what must hold of a membership plan, whatever happens to the nodes of a job.
#include "coordinator/membership_plan.hpp"

namespace ddp::launcher {
namespace {

constexpr int kSequences = 100'000;
constexpr int kEvents = 20;

/// A coordinator that does what the plan decides, with agents that come, are lost and fail at random.
class Model {
 public:
  explicit Model(unsigned seed) : random_(seed), plan_(make_rules(), now_) {}

  /// One sequence. @return whether all that must hold has held
  bool run() {
    obey();
    for (int event = 0; event < kEvents && !over_ && !broken_; ++event) {
      happen();
      obey();
    }
    return !broken_;
  }
  const std::string& why() const { return why_; }

 private:
  using Time = MembershipPlan::Time;

  MembershipRules make_rules() {
    const int min = pick(1, 4);
    return rules_ = {.min_nodes = min,
                     .max_nodes = min + pick(0, 3),
                     .spares = pick(0, 2),
                     .run_id = "run",
                     .version = "1",
                     .join_timeout = 600s,
                     .last_call = 30s,
                     .replaceable = pick(0, 1) == 1,
                     .joinable = pick(0, 2) == 0,
                     .expands = pick(0, 2) == 0,
                     .max_restarts = pick(0, 2),
                     .crash_loop = {.generations = pick(0, 3), .within = 60s}};
  }
  bool awaits_others() const { return rules_.elastic() && (rules_.replaceable || rules_.expands); }
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  void require(bool holds, const char* what) {
    if (!holds && !broken_) why_ = what;
    broken_ = broken_ || !holds;
  }

  void happen() {
    now_ += std::chrono::seconds(pick(0, 3) == 0 ? pick(0, 40) : pick(0, 3));
    switch (pick(0, 10)) {
      case 0:
      case 1: return join();
      case 2: return lose();
      case 3: return end(GenerationEnd::rank_failed);
      case 4: return end(GenerationEnd::node_failed);
      case 5: return leave();
      case 6:
        if (announced_) return end(GenerationEnd::resized);
        if (pick(0, 3) == 0) end(GenerationEnd::requested);
        return;
      case 8: return resize();
      case 10: return warm();
      case 7:
        if (live_ && pick(0, 3) == 0) {
          plan_.rank_succeeded();
          admits_ = false;
        }
        return;
      default:
        if (wait_) now_ = std::max(now_, wait_->when());
    }
  }
  void join() {
    const int agent = next_agent_++;
    const control::Hello hello{.version = "1",
                               .run_id = "run",
                               .host = "n" + std::to_string(pick(0, 9)),
                               .nproc = pick(0, 9) == 0 ? 0 : 1,
                               .warms = pick(0, 2) == 0};
    if (plan_.join(agent, hello, now_).empty()) {
      require(!live_ || rules_.open() || rules_.spares > 0, "no node joins a running job of other kinds");
      require(generation_ == 0 || hello.nproc > 0, "no node without ranks joins a running job");
      joined_.insert(agent);
      hosts_[agent] = hello.host;
      if (hello.warms) warm_by_[agent] = now_ + rules_.warm_limit;
      const Time rested = rested_at(hello.host);
      if (rested > now_) rests_until_[agent] = rested;
      require(plan_.rest_of(agent, now_) == std::max<Time::duration>(rested - now_, 0s),
              "a host that was lost again and again waits");
    }
    const int spares = rules_.open() ? std::max(rules_.max_nodes, rules_.spares) : rules_.spares;
    require(static_cast<int>(joined_.size()) <= rules_.max_nodes + spares, "there are so many spares");
    require(plan_.num_members() == static_cast<int>(joined_.size()), "it knows its members");
  }
  void lose() {
    if (joined_.empty()) return;
    const auto victim = std::next(joined_.begin(), pick(0, static_cast<int>(joined_.size()) - 1));
    const int agent = *victim;
    require(plan_.lost(agent), "a member is known");
    require(!plan_.lost(agent), "a lost one is not");
    joined_.erase(victim);
    leaving_.erase(agent);
    if (!live_ || std::find(roster_.begin(), roster_.end(), agent) == roster_.end()) return;
    losses_[hosts_[agent]].push_back(now_);
    end(GenerationEnd::node_failed);
  }
  void warm() {
    if (joined_.empty()) return;
    const int agent = *std::next(joined_.begin(), pick(0, static_cast<int>(joined_.size()) - 1));
    plan_.warmed(agent, now_);
    warm_by_.erase(agent);
  }
  void leave() {
    if (joined_.empty()) return;
    const int agent = *std::next(joined_.begin(), pick(0, static_cast<int>(joined_.size()) - 1));
    const bool may = plan_.may_leave(agent);
    require(may || !rules_.elastic() || !rules_.replaceable, "where others are waited for, all may leave");
    if (!may) return;
    plan_.leave(agent);
    leaving_.insert(agent);
  }
  void resize() {
    const int nodes = pick(rules_.min_nodes - 1, rules_.max_nodes + 1);
    if (nodes == 0) return;  // as before
    const int spares = pick(0, 2) == 0 ? pick(0, 2) : -1;
    const bool known = static_cast<int>(joined_.size()) >= nodes + std::max(spares, 0) || rules_.open();
    const bool room = nodes + spares <= rules_.most_members();
    const bool may = generation_ > 0 && nodes >= rules_.min_nodes && nodes <= rules_.max_nodes && known && room;
    std::vector<int> order = plan_.waiting();
    std::reverse(order.begin(), order.end());
    for (auto agent = roster_.rbegin(); agent != roster_.rend(); ++agent) {
      const bool waits = std::find(order.begin(), order.end(), *agent) != order.end();
      if (joined_.contains(*agent) && !leaving_.contains(*agent) && !waits) order.push_back(*agent);
    }
    const bool taken = plan_.resize({.nodes = nodes, .spares = spares, .by = "a user"}, now_).taken;
    require(taken == (may && !(live_ && !admits_)), "who asks for a number of nodes gets it within the bounds");
    if (!taken) return;
    target_ = nodes;
    if (spares >= 0) most_spares_ = spares;
    if (!most_spares_) return;
    const int surplus = static_cast<int>(joined_.size() - leaving_.size()) - target_ - *most_spares_;
    for (int i = 0; i < surplus; ++i) leaving_.insert(order.at(static_cast<std::size_t>(i)));
  }
  void end(GenerationEnd why) {
    if (!live_) return;
    live_ = announced_ = leave_announced_ = false;
    end_ = why;
    may_follow_ = plan_.may_follow(why, now_);
    plan_.ended(why, now_);
    std::vector<int> left = roster_;
    std::erase_if(left, [this](int agent) { return !joined_.contains(agent) || leaving_.contains(agent); });
    for (; static_cast<int>(left.size()) > target_; left.pop_back()) parked_.insert(left.back());
  }

  /// By rule: 10 s after the second loss that follows another within 10 minutes, then twice as long each time.
  Time rested_at(const std::string& host) {
    const std::vector<Time>& losses = losses_[host];
    if (losses.empty() || now_ - losses.back() > 600s || rules_.crash_loop.generations == 0) return now_;
    int row = 1;
    for (std::size_t i = losses.size() - 1; i > 0 && losses[i] - losses[i - 1] <= 600s; --i) ++row;
    std::chrono::seconds rest = row < 2 ? 0s : 10s;
    for (int more = 2; more < row; ++more) rest = std::min<std::chrono::seconds>(2 * rest, 600s);
    return std::max(now_, losses.back() + rest);
  }
  bool rests(int agent) const {
    const auto until = rests_until_.find(agent);
    return until != rests_until_.end() && until->second > now_;
  }
  bool warms(int agent) const {
    const auto by = warm_by_.find(agent);
    return by != warm_by_.end() && by->second > now_;
  }
  int num_resting() const {
    return static_cast<int>(std::count_if(joined_.begin(), joined_.end(), [this](int agent) { return rests(agent); }));
  }

  void obey() {
    const int used = plan_.restarts_used();
    Decision decision = plan_.decide(now_);
    for (; !broken_; decision = plan_.decide(now_)) {
      if (const auto* leaver = std::get_if<Release>(&decision)) {
        released(leaver->agent);
      } else if (std::holds_alternative<Withdraw>(decision)) {
        require(live_ && announced_ && !leave_announced_, "what is withdrawn was announced for nodes that join");
        announced_ = false;
      } else {
        break;
      }
    }
    wait_.reset();
    if (std::holds_alternative<Announce>(decision)) {
      const auto& change = std::get<Announce>(decision);
      const bool leaves = !change.leaving.empty();
      require(live_ && (!announced_ || (leaves && !leave_announced_)),
              "a change is announced once, a leave after it again");
      require(admits_ || change.joining.empty() || !change.leaving.empty(), "nobody joins a job that ends");
      require(!change.joining.empty() || !change.leaving.empty() || !change.parking.empty(), "a change has a cause");
      require(change.joining.empty() || change.parking.empty(), "no node waits so that another can take part");
      const std::vector<int> waiting = plan_.waiting();
      const bool any_warm =
          std::any_of(waiting.begin(), waiting.end(), [this](int agent) { return !warms(agent) && !rests(agent); });
      require(change.joining.empty() || leaves || any_warm, "ranks end only for nodes that are warm");
      announced_ = true;
      leave_announced_ = leave_announced_ || leaves;
    } else if (const auto* wait = std::get_if<WaitUntil>(&decision)) {
      require(plan_.restarts_used() == used, "waiting spends no restart");
      require(live_ || (wait->until && wait->until->when() > now_), "it always waits for something, later");
      wait_ = wait->until;
    } else if (const auto* begin = std::get_if<Start>(&decision)) {
      started(*begin, used);
    } else {
      ended(std::get<End>(decision).why);
    }
  }

  void released(int agent) {
    const bool runs = live_ && std::find(roster_.begin(), roster_.end(), agent) != roster_.end();
    require(!runs, "who has ranks is not released");
    require(leaving_.erase(agent) == 1 && joined_.erase(agent) == 1, "only who wants to leave is released, once");
  }

  void started(const Start& begin, int used) {
    const std::vector<Member>& nodes = begin.roster.nodes;
    const int size = static_cast<int>(nodes.size());
    require(!live_, "one generation at a time");
    require(begin.roster.generation == generation_++, "generations count up by one");
    require(size >= rules_.min_nodes && size <= target_, "between the minimum and what was asked for");
    std::set<int> agents;
    std::vector<int> survivors;
    for (const Member& node : nodes) {
      require(joined_.contains(node.agent), "no lost agent takes part");
      require(!rests(node.agent), "a host that was lost again and again rests first");
      require(agents.insert(node.agent).second, "each agent once");
      const auto [known, is_new] = ids_.try_emplace(node.agent, node.id);
      require(known->second == node.id, "an agent keeps its number");
      const bool was_there = std::find(roster_.begin(), roster_.end(), node.agent) != roster_.end();
      if (was_there && !parked_.contains(node.agent)) survivors.push_back(node.agent);
    }
    const auto most =
        std::min(joined_.size() - static_cast<std::size_t>(num_resting()), static_cast<std::size_t>(target_));
    require(agents.size() == most, "all members take part for whom there is a place");
    require(leaving_.empty(), "who wanted to leave has left");
    require(plan_.waiting().size() == joined_.size() - most, "the others are spares");
    check_order(nodes, survivors);
    require(begin.change.survivors == static_cast<int>(survivors.size()), "survivors are counted");
    require(begin.change.before == static_cast<int>(roster_.size()), "the nodes before are counted");
    require(static_cast<int>(begin.change.joined.size()) == size - begin.change.survivors, "newcomers are named");
    const bool spends =
        end_ && (*end_ == GenerationEnd::rank_failed || (*end_ == GenerationEnd::node_failed && !rules_.elastic()));
    require(plan_.restarts_used() == used + (spends ? 1 : 0), "a restart is spent by a failed rank alone");
    require(plan_.restarts_used() <= rules_.max_restarts, "not more than there are");
    require(!end_ || may_follow_, "what may not follow does not");
    for (const int agent : begin.parked)
      require(parked_.contains(agent) && !agents.contains(agent), "the last slots are those that wait");
    parked_.clear();
    roster_.clear();
    for (const Member& node : nodes) roster_.push_back(node.agent);
    live_ = admits_ = true;
  }
  /// Survivors keep their order, and their places where newcomers fill all gaps.
  void check_order(const std::vector<Member>& nodes, const std::vector<int>& survivors) {
    std::vector<int> expected = roster_;
    const auto stays = [&](int agent) { return joined_.contains(agent) && !parked_.contains(agent); };
    std::erase_if(expected, [&](int agent) { return !stays(agent); });
    require(survivors == expected, "survivors keep their order");
    if (nodes.size() < roster_.size()) return;
    for (std::size_t slot = 0; slot < roster_.size(); ++slot) {
      require(!stays(roster_[slot]) || nodes[slot].agent == roster_[slot],
              "newcomers take the places of those that are lost");
    }
  }

  void ended(End::Why why) {
    over_ = true;
    const bool enough = static_cast<int>(joined_.size()) >= rules_.min_nodes;
    switch (why) {
      case End::Why::not_enough_came: return require(generation_ == 0 && !enough, "too few came");
      case End::Why::nothing_follows:
        return require(!may_follow_ && plan_.restarts_used() == rules_.max_restarts, "no restart is left");
      case End::Why::too_few_left: return require(may_follow_ && !enough && !awaits_others(), "no other is waited for");
      case End::Why::no_other_came: return require(may_follow_ && !enough && awaits_others(), "no other came");
      case End::Why::crash_loop:
        return require(rules_.crash_loop.generations > 0 && generation_ >= rules_.crash_loop.generations,
                       "a crash loop needs as many generations");
    }
  }

  std::mt19937 random_;
  Deadline::Clock::time_point now_{1000s};
  MembershipRules rules_;
  MembershipPlan plan_;
  std::set<int> joined_;
  std::set<int> leaving_;
  std::set<int> parked_;  ///< of the last generation
  int target_ = rules_.max_nodes;
  std::optional<int> most_spares_;  ///< of a wish
  std::vector<int> roster_;         ///< agents of the last generation, by slot
  std::map<int, int> ids_;          ///< by agent
  std::map<int, std::string> hosts_;
  std::map<int, Time> rests_until_;                  ///< by agent
  std::map<int, Time> warm_by_;                      ///< likewise
  std::map<std::string, std::vector<Time>> losses_;  ///< by host
  std::optional<Deadline> wait_;
  std::optional<GenerationEnd> end_;
  bool may_follow_ = true;
  bool live_ = false;
  bool announced_ = false;
  bool leave_announced_ = false;
  bool admits_ = true;
  bool over_ = false;
  bool broken_ = false;
  std::string why_;
  int generation_ = 0;
  int next_agent_ = 0;
};

TEST(MembershipModel, WhateverHappensRostersFollowTheRules) {
  for (unsigned seed = 0; seed < kSequences; ++seed) {
    Model model(seed);
    ASSERT_TRUE(model.run()) << "sequence " << seed << ": " << model.why();
  }
}

}  // namespace
}  // namespace ddp::launcher
