// The course of a job: agents join, attempts begin and end, and what is decided then.
#include "coordinator/coordinator.hpp"

#include <signal.h>

#include <algorithm>
#include <random>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "outcome/signal_name.hpp"
#include "placement/network_choice.hpp"
#include "pmix_server/job_namespace.hpp"

namespace ddp::launcher {

namespace {

// Agents remove what their ranks have left within about 12 s (see agent/attempt.cpp), besides what consoles may take.
constexpr std::chrono::seconds kCleaningLimit{20};
// The attempt process of an agent that swaps or reads its programs from a slow file system.
constexpr std::chrono::seconds kPreparingLimit{120};
constexpr std::chrono::seconds kFinishingLimit{5};
// While restarts remain, nothing is gained by waiting; on the last attempt, survivors may still say what they saw.
constexpr std::chrono::milliseconds kLastAttemptGrace{2'000};
constexpr std::chrono::milliseconds kNoGrace{0};

std::string random_suffix() {
  std::random_device source;
  return fmt::format("{:08x}", source());
}

std::vector<RankName> unstarted_ranks(const std::string& host, int first_rank, int count) {
  std::vector<RankName> names;
  for (int local = 0; local < count; ++local)
    names.push_back({.rank = first_rank + local, .local_rank = local, .pid = 0, .host = host});
  return names;
}

/// Tells each node the interface that its ranks use for the others, and makes that the first node's first address,
/// where the others look for the store. What the user said with --local-addr stays first.
void choose_network(const std::vector<Membership::Member>& members, std::vector<control::NodeLayout>& nodes) {
  std::vector<NodeNetwork> networks;
  for (const Membership::Member& member : members) {
    NodeNetwork& network = networks.emplace_back();
    for (const control::Interface& each : member.hello.interfaces) {
      network.candidates.push_back(
          {.interface = each.name,
           .at = {.address = {.address = each.address, .prefix_length = each.prefix_length, .ipv6 = each.ipv6},
                  .fabric = each.fabric,
                  .routes_to_peers = each.routes_to_peers,
                  .rate_mbps = static_cast<std::uint32_t>(each.rate_mbps)}});
    }
    network.reason = "it is the only one that reaches other hosts";
    if (network.candidates.empty()) return;
  }
  if (members.size() < 2) return;
  const std::vector<topology::SocketInterface> choices = choose_interfaces(networks);
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    nodes[index].socket_interface = choices[index].name;
    nodes[index].socket_reason = choices[index].reason;
  }
  std::vector<std::string>& addresses = nodes.front().addresses;
  const bool user_chose = addresses.front() != members.front().hello.interfaces.front().address;
  const auto chosen = std::find(addresses.begin(), addresses.end(), choices.front().address);
  if (!user_chose && chosen != addresses.end()) std::rotate(addresses.begin(), chosen, chosen + 1);
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, EventLoop& loop, CoordinatorEvents events)
    : options_(std::move(options)),
      events_(std::move(events)),
      links_(
          loop, [this](int link, const control::Message& message) { handle(link, message); },
          [this](int link, const std::string& peer, const std::string& why) { lost(link, peer, why); }),
      membership_(options_.membership, Deadline::Clock::now()),
      log_suffix_(random_suffix()) {
  if (options_.timeout) job_end_ = Deadline::after(*options_.timeout);
}

// ---- agents come and go ----------------

void Coordinator::send_to_nodes(const control::Message& message) {
  for (const Node& node : nodes_) links_.send(node.link, message);
}

void Coordinator::refuse(int link, const std::string& why) {
  events_.note(fmt::format("refused {}: {}", links_.peer(link), why));
  links_.send(link, control::Finish{.exit_status = 1, .message = why});
  links_.drop(link);
}

void Coordinator::lost(int link, const std::string& peer, const std::string& why) {
  if (phase_ == Phase::gathering) {
    if (!membership_.leave(link)) return;
    const std::string what = fmt::format("{} was lost before the job started: {}", peer, why);
    if (membership_.rules().replaceable || membership_.give_up_one()) {
      events_.note(what);
    } else {
      agents_lost(what, 1);
    }
  } else if (Node* node = node_of(link)) {
    node->lost = node->cleaned = true;
    fail_node(
        *node,
        fmt::format("the connection to ddprun's agent on {} (pid {}) was lost: {}", node->layout.host, node->pid, why),
        1);
  }
}

void Coordinator::agents_lost(const std::string& why, int exit_status) {
  if (phase_ == Phase::finishing || phase_ == Phase::finished) return;
  if (phase_ == Phase::gathering) {
    outcome_.nodes.push_back({.host = "",
                              .node_rank = -1,
                              .num_ranks = 0,
                              .message = fmt::format("{}; {}", why, membership_.describe()),
                              .exit_status = exit_status,
                              .time = std::chrono::system_clock::now()});
    finish();
    return;
  }
  for (Node& node : nodes_) {
    if (!node.lost) links_.drop(node.link);
    node.lost = node.cleaned = node.failed = true;
  }
  const NodeFailure failure{.host = "all nodes",
                            .node_rank = 0,
                            .num_ranks = world_size_,
                            .message = why,
                            .exit_status = exit_status,
                            .time = std::chrono::system_clock::now()};
  if (phase_ == Phase::preparing) {
    outcome_.nodes.push_back(failure);
    end_attempt();
  } else if (phase_ == Phase::running) {
    follow(supervisor_->node_failed(failure, 0, Moment::now()));
  }
}

// ---- attempts ----------------

void Coordinator::begin_attempt() {
  ++attempt_;
  phase_ = Phase::preparing;
  phase_end_ = Deadline::after(kPreparingLimit);
  drain_time_ = control::kDrainTime;
  outcome_ = {};
  supervisor_.reset();
  store_port_ = 0;
  nodes_.clear();
  world_size_ = 0;
  std::vector<int> ranks_per_node;
  control::PrepareAttempt plan{.attempt = attempt_,
                               .max_restarts = options_.max_restarts,
                               .node_rank = 0,
                               .serve_store = false,
                               .run_id = options_.membership.run_id,
                               .name_space = {},
                               .log_suffix = log_suffix_,
                               .terminal_out = options_.terminal_out,
                               .terminal_err = options_.terminal_err,
                               .nodes = {}};
  const std::vector<Membership::Member> members = membership_.in_order();
  for (const Membership::Member& member : members) {
    const control::Hello& hello = member.hello;
    plan.nodes.push_back({.host = hello.host, .nproc = hello.nproc, .role = hello.role, .addresses = hello.addresses});
  }
  choose_network(members, plan.nodes);
  for (std::size_t index = 0; index < members.size(); ++index) {
    nodes_.push_back({.link = members[index].agent,
                      .layout = plan.nodes[index],
                      .first_rank = world_size_,
                      .pid = members[index].hello.pid});
    ranks_per_node.push_back(plan.nodes[index].nproc);
    world_size_ += plan.nodes[index].nproc;
  }
  plan.name_space = make_namespace_name(nodes_.front().layout.host, attempt_);
  modex_.emplace(attempt_, ranks_per_node);
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    plan.node_rank = static_cast<int>(index);
    plan.serve_store = index == 0;
    links_.send(nodes_[index].link, plan);
  }
}

void Coordinator::start_ranks() {
  phase_ = Phase::running;
  phase_end_.reset();
  std::vector<RankName> names;
  for (const Node& node : nodes_) {
    const auto ranks = unstarted_ranks(node.layout.host, node.first_rank, node.layout.nproc);
    names.insert(names.end(), ranks.begin(), ranks.end());
  }
  const bool last = attempt_ >= options_.max_restarts;
  supervisor_ = std::make_unique<Supervisor>(
      std::move(names),
      SupervisionLimits{.failure_grace = options_.failure_grace.value_or(last ? kLastAttemptGrace : kNoGrace),
                        .shutdown_timeout = options_.shutdown_timeout},
      SignalMeaning{.ending = options_.ending_signals, .forwarded = options_.forwarded_signals});
  std::vector<std::string> addresses = nodes_.front().layout.addresses;
  if (nodes_.size() == 1 && addresses.empty()) addresses = {"127.0.0.1"};
  send_to_nodes(
      control::StartAttempt{.attempt = attempt_, .store_addresses = std::move(addresses), .store_port = store_port_});
}

void Coordinator::follow(const SignalOrders& orders, bool by_slurm) {
  for (const SignalOrder& order : orders) {
    const bool groups = order.target == SignalOrder::Target::groups;
    events_.detail(
        fmt::format("sending {} to the ranks{}", signal_name(order.signal), groups ? "' process groups" : ""));
    send_to_nodes(control::SignalRanks{
        .attempt = attempt_, .groups = groups, .signal = order.signal, .may_have_reached_ranks = by_slurm});
  }
}

void Coordinator::signal_received(int signal, bool by_slurm) {
  const bool ends = std::find(options_.ending_signals.begin(), options_.ending_signals.end(), signal) !=
                    options_.ending_signals.end();
  events_.detail(fmt::format("received {}", signal_name(signal)));
  if (supervisor_) {
    follow(supervisor_->signal_received(signal, Moment::now()), by_slurm);
  } else if (ends && phase_ == Phase::gathering) {
    outcome_.forwarded_signal = signal;
    finish();
  } else if (ends && phase_ == Phase::preparing) {
    outcome_.forwarded_signal = signal;
    end_attempt();
  } else if (ends) {
    // SIGTERM may come several times for one cause: from Slurm to this process and through its agents.
    const bool again = drain_time() < control::kDrainTime;
    if (phase_ == Phase::cleaning && !outcome_.success()) outcome_.end_by(signal);  // the user does not want a restart
    shorten_drain(again && signal == SIGINT ? std::chrono::seconds(0) : control::kUrgentDrainTime);
  }
}

void Coordinator::end_attempt() {
  phase_ = Phase::cleaning;
  send_end();
}

void Coordinator::send_end() {
  phase_end_ = Deadline::after(kCleaningLimit + drain_time());
  send_to_nodes(control::EndAttempt{.attempt = attempt_, .drain_ms = static_cast<int>(drain_time().count())});
}

std::chrono::milliseconds Coordinator::drain_time() const {
  const bool ended_by_user = outcome_.forwarded_signal != 0 || outcome_.timed_out;
  return ended_by_user ? std::min<std::chrono::milliseconds>(drain_time_, control::kUrgentDrainTime) : drain_time_;
}

void Coordinator::shorten_drain(std::chrono::milliseconds limit) {
  if (limit >= drain_time_) return;
  drain_time_ = limit;
  if (phase_ == Phase::cleaning) send_end();
}

void Coordinator::conclude() {
  for (const Node& node : nodes_) {
    if (node.lost) membership_.leave(node.link);
    if (!node.cleaned) {
      events_.note(fmt::format("the agent on {} (pid {}) does not answer; its processes may still be there",
                               node.layout.host, node.pid));
      membership_.leave(node.link);
      links_.drop(node.link);
    }
  }
  const bool hopeless = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.hopeless; });
  const int restarts_left = options_.max_restarts - attempt_;
  if (outcome_.failed_by_itself() && !hopeless && restarts_left > 0 && membership_.enough()) {
    events_.restarting(outcome_, attempt_, restarts_left);
    begin_attempt();
    return;
  }
  finish();
}

int Coordinator::exit_status() const {
  const int status = outcome_.exit_status();
  return options_.torchrun_exit_codes && status != 0 ? 1 : status;
}

void Coordinator::finish() {
  phase_ = Phase::finishing;
  phase_end_ = Deadline::after(kFinishingLimit);
  supervisor_.reset();
  links_.stop_listening();
  links_.send_to_all(control::Finish{.exit_status = exit_status(), .message = {}});
}

// ---- time ----------------

std::optional<Deadline> Coordinator::next_deadline() const {
  std::optional<Deadline> next = phase_end_;
  const auto consider = [&next](const std::optional<Deadline>& other) {
    if (other && (!next || other->when() < next->when())) next = other;
  };
  if (phase_ == Phase::gathering) consider(membership_.next_deadline());
  if (phase_ == Phase::running && supervisor_) consider(supervisor_->next_deadline());
  if (phase_ != Phase::finishing && phase_ != Phase::finished &&
      !(phase_ == Phase::cleaning && drain_time() < control::kDrainTime))
    consider(job_end_);
  consider(links_.next_deadline());
  return next;
}

void Coordinator::time_passed() {
  const auto now = Deadline::Clock::now();
  links_.time_passed();
  if (job_end_ && job_end_->expired()) {
    if (phase_ == Phase::gathering || phase_ == Phase::preparing) {
      outcome_.timed_out = true;
      job_end_.reset();
      phase_ == Phase::gathering ? finish() : end_attempt();
    } else if (phase_ == Phase::running) {
      job_end_.reset();
      follow(supervisor_->job_timed_out(Moment::now()));
    } else if (phase_ == Phase::cleaning) {
      shorten_drain(control::kUrgentDrainTime);
    }
  }
  if (phase_ == Phase::gathering && membership_.complete(now)) begin_attempt();
  give_up_waiting(now);
  if (phase_ == Phase::running) {
    follow(supervisor_->time_passed(Moment::now()));
    if (supervisor_->done()) {
      outcome_ = supervisor_->outcome();
      supervisor_.reset();
      end_attempt();
    }
  }
  if (phase_ == Phase::cleaning &&
      (phase_end_->expired() || std::all_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.cleaned; }))) {
    conclude();
  }
  if (phase_ == Phase::finishing && (links_.empty() || phase_end_->expired())) phase_ = Phase::finished;
}

void Coordinator::give_up_waiting(Deadline::Clock::time_point now) {
  using std::chrono::duration_cast, std::chrono::seconds;
  if (phase_ == Phase::gathering && membership_.failed(now)) {
    agents_lost(fmt::format("the nodes did not come together within {} s",
                            duration_cast<seconds>(membership_.rules().join_timeout).count()),
                1);
  }
  if (phase_ != Phase::preparing || !phase_end_->expired()) return;
  for (Node& node : nodes_) {
    if (node.prepared || phase_ != Phase::preparing) continue;
    fail_node(node,
              fmt::format("ddprun's agent on {} (pid {}) did not prepare its ranks within {} s", node.layout.host,
                          node.pid, kPreparingLimit.count()),
              1);
  }
}

Coordinator::Node* Coordinator::node_of(int link) {
  const auto found =
      std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.link == link && !node.lost; });
  return found == nodes_.end() ? nullptr : &*found;
}

}  // namespace ddp::launcher
