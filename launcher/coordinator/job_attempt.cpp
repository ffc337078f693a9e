#include "coordinator/job_attempt.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "placement/network_choice.hpp"

namespace ddp::launcher {
namespace {

/// Gives each node the interface that its ranks use between nodes, and puts that of the first node first among its
/// addresses, where the others look for the store. An address from --local-addr stays first.
void choose_network(const std::vector<Member>& members, std::vector<AttemptNode>& nodes) {
  std::vector<NodeNetwork> networks;
  for (const Member& member : members) {
    const NodeNetwork& network = networks.emplace_back(network_of(member.hello.interfaces));
    if (network.candidates.empty()) return;
  }
  if (members.size() < 2) return;
  const std::vector<topology::SocketInterface> choices = choose_interfaces(networks);
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    nodes[index].layout.socket_interface = choices[index].name;
    nodes[index].layout.socket_reason = choices[index].reason;
  }
  std::vector<std::string>& addresses = nodes.front().layout.addresses;
  const bool user_chose = addresses.front() != members.front().hello.interfaces.front().address;
  const auto chosen = std::find(addresses.begin(), addresses.end(), choices.front().address);
  if (!user_chose && chosen != addresses.end()) std::rotate(addresses.begin(), chosen, chosen + 1);
}

std::vector<int> ranks_per_node(const Roster& roster) {
  std::vector<int> counts;
  for (const Member& member : roster.nodes) counts.push_back(member.hello.nproc);
  return counts;
}

}  // namespace

JobAttempt::JobAttempt(const Roster& roster)
    : epoch_(roster.generation), modex_(roster.generation, ranks_per_node(roster)) {
  for (const Member& each : roster.nodes) {
    const control::Hello& hello = each.hello;
    node_of_link_.emplace(each.agent, nodes_.size());
    nodes_.push_back(
        {.link = each.agent,
         .member = each.id,
         .rank = static_cast<int>(nodes_.size()),
         .first_rank = world_size_,
         .pid = hello.pid,
         .layout = {.host = hello.host, .nproc = hello.nproc, .role = hello.role, .addresses = hello.addresses}});
    world_size_ += hello.nproc;
  }
  choose_network(roster.nodes, nodes_);
}

std::vector<control::NodeLayout> JobAttempt::layout() const {
  std::vector<control::NodeLayout> layout;
  for (const AttemptNode& node : nodes_) {
    layout.push_back(node.layout);
    if (node.rank > 0) layout.back().addresses.clear();
  }
  return layout;
}

AttemptNode* JobAttempt::node_of(int link) {
  const auto found = node_of_link_.find(link);
  if (found == node_of_link_.end()) return nullptr;
  AttemptNode& node = nodes_[found->second];
  return node.state == NodeState::lost ? nullptr : &node;
}

const AttemptNode& JobAttempt::node_with(int rank) const {
  const auto after = std::upper_bound(nodes_.begin(), nodes_.end(), rank,
                                      [](int wanted, const AttemptNode& node) { return wanted < node.first_rank; });
  return *std::prev(after);
}

void JobAttempt::prepared(AttemptNode& node, const control::AttemptPrepared& message) {
  node.state = NodeState::prepared;
  if (node.rank != 0) return;
  store_port_ = message.store_port;
  store_key_ = message.store_key;
}

bool JobAttempt::all_prepared() const {
  while (prepared_ < nodes_.size() && nodes_[prepared_].state == NodeState::prepared) ++prepared_;
  return prepared_ == nodes_.size();
}

control::StartAttempt JobAttempt::start(SupervisionLimits limits, SignalMeaning signals) {
  std::vector<RankName> names;
  for (const AttemptNode& node : nodes_) {
    for (int local = 0; local < node.layout.nproc; ++local)
      names.push_back({.rank = node.first_rank + local, .local_rank = local, .pid = 0, .host = node.layout.host});
  }
  supervisor_.emplace(std::move(names), limits, std::move(signals));
  std::vector<std::string> addresses = nodes_.front().layout.addresses;
  if (nodes_.size() == 1 && addresses.empty()) addresses = {"127.0.0.1"};
  return {.epoch = epoch_, .store_addresses = std::move(addresses), .store_port = store_port_, .store_key = store_key_};
}

void JobAttempt::started(AttemptNode& node, const std::vector<std::int64_t>& pids) {
  node.state = NodeState::started;
  ranks_started_ += node.layout.nproc;
  const auto count = std::min(pids.size(), static_cast<std::size_t>(node.layout.nproc));
  for (std::size_t local = 0; local < count; ++local) {
    supervisor_->rank_started(node.first_rank + static_cast<int>(local), static_cast<pid_t>(pids[local]));
  }
}

std::vector<std::string> JobAttempt::take_descriptions() {
  std::vector<std::string> texts;
  for (; descriptions_taken_ < nodes_.size() && nodes_[descriptions_taken_].state >= NodeState::started;
       ++descriptions_taken_) {
    std::string& text = nodes_[descriptions_taken_].description;
    if (!text.empty()) texts.push_back(std::move(text));
  }
  return texts;
}

bool JobAttempt::settled() const {
  while (settled_ < nodes_.size() && nodes_[settled_].settled()) ++settled_;
  return settled_ == nodes_.size();
}

}  // namespace ddp::launcher
