#include "step_program/network_choice.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "step_program/node_list.hpp"
#include "task_side/network_notes.hpp"
#include "task_side/step_store.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/network/hostlist.hpp"
#include "topology/network/interface_agreement.hpp"
#include "topology/network/user_interfaces.hpp"

namespace ddp::srun_plugin {
namespace {

constexpr std::string_view kEachRoutes = "each node uses the interface that routes to the others";
// For the first node's decision, after its own patience.
constexpr std::chrono::seconds kDecisionPatience{2};
// How often the first node, while it waits, looks whether somebody else has decided: that the step is being ended.
constexpr std::chrono::milliseconds kLookInterval{500};

/// Components of a heterogeneous step may share a node.
std::vector<std::string> each_once(const std::vector<std::string>& names) {
  std::vector<std::string> once;
  for (const std::string& name : names) {
    if (std::find(once.begin(), once.end(), name) == once.end()) once.push_back(name);
  }
  return once;
}

std::vector<NetworkInterface> known_interfaces() {
  std::vector<NetworkInterface> interfaces;
  for (topology::InterfaceFact& fact : topology::read_usable_interfaces())
    interfaces.push_back(std::move(fact.interface));
  return interfaces;
}

/// One node's part in the agreement.
class Agreeing {
 public:
  Agreeing(StepStore& store, const std::vector<std::string>& nodes, std::string self)
      : store_(store), nodes_(nodes), self_(std::move(self)) {
    for (const std::string& node : nodes) keys_.push_back(note_key(node));
  }

  NetworkDecision decide(const NodeNote& own, const AgreementLimits& limits) {
    store_.set(note_key(self_), encode(own));
    const Deadline deadline = Deadline::after(self_ != nodes_.front() ? limits.others : limits.first);
    if (self_ != nodes_.front()) {
      if (store_.wait({kDecisionKey}, deadline)) return decode_decision(store_.get({kDecisionKey}).front());
      return settle(without({}, limits.others));
    }
    while (!store_.wait(keys_, earlier(deadline, Deadline::after(kLookInterval)))) {
      if (const Bytes decision = store_.get({kDecisionKey}).front(); !decision.empty())
        return decode_decision(decision);
      if (deadline.expired()) return settle(without({}, limits.first));
    }
    return settle(of_all());
  }
  /// What this node has to say for the step.
  const std::string& warning() const { return warning_; }

 private:
  NetworkDecision of_all() {
    std::vector<std::vector<topology::CandidateAddress>> candidates;
    std::vector<std::string> unreadable;
    const std::vector<Bytes> notes = store_.get(keys_);
    for (std::size_t i = 0; i < notes.size(); ++i) {
      try {
        // a node without candidates has said why, and takes no part
        if (NodeNote note = decode_note(notes[i]); !note.empty()) candidates.push_back(std::move(note));
      } catch (const Error&) {
        unreadable.push_back(nodes_[i]);
      }
    }
    if (!unreadable.empty()) return without(unreadable, {});
    topology::Agreement agreement = topology::agree(candidates);
    return {.subnet = agreement.subnet, .reason = std::move(agreement.reason), .by = self_};
  }

  /// Without an agreement. @p unreadable nodes are of another version; if there is none, others said nothing.
  NetworkDecision without(const std::vector<std::string>& unreadable, std::chrono::milliseconds waited) {
    std::string cause = fmt::format("the libddp of {} is of another version", listed(unreadable));
    if (unreadable.empty()) {
      std::vector<std::string> silent;
      const std::vector<Bytes> notes = store_.get(keys_);
      for (std::size_t i = 0; i < notes.size(); ++i) {
        if (notes[i].empty()) silent.push_back(nodes_[i]);
      }
      if (silent.empty()) silent.push_back(nodes_.front());  // it has said what it has, but decided nothing
      cause = fmt::format("{} did not take part within {:g} s (is the plugin with its ddp-step installed there?)",
                          listed(silent), std::chrono::duration<double>(waited).count());
    }
    warning_ = fmt::format("the nodes of this step do not agree on a network: {}; {}", cause, kEachRoutes);
    return {.reason = cause, .by = self_};
  }

  /// Of several decisions, the first in the store counts.
  NetworkDecision settle(const NetworkDecision& mine) {
    NetworkDecision first = decode_decision(store_.set_first(kDecisionKey, encode(mine)));
    if (first != mine) warning_.clear();
    return first;
  }

  StepStore& store_;
  const std::vector<std::string>& nodes_;
  std::string self_;
  std::vector<std::string> keys_;
  std::string warning_;
};

}  // namespace

NetworkChoice choose_between_nodes(const topology::CandidateSearch& own, const PlanQuestion& question,
                                   const std::vector<std::string>& nodes, const AgreementLimits& limits) {
  NetworkChoice choice;
  NodeNote note;
  for (const topology::InterfaceCandidate& candidate : own.candidates) note.push_back(candidate.at);
  std::optional<NetworkDecision> decision;
  if (std::find(nodes.begin(), nodes.end(), question.node_name) == nodes.end()) {
    choice.remarks.push_back(fmt::format("this node, {}, is not among the step's ({}); {}", question.node_name,
                                         question.node_list, kEachRoutes));
  } else if (question.store_port == 0) {
    choice.remarks.push_back(fmt::format("without a store the nodes do not agree on a network; {}", kEachRoutes));
  } else {
    try {
      const auto begin = Deadline::Clock::now();
      StepStore store(question.store_address, question.store_port);
      Agreeing agreeing(store, nodes, question.node_name);
      decision = agreeing.decide(note, limits);
      const std::chrono::duration<double, std::milli> took = Deadline::Clock::now() - begin;
      choice.remarks.push_back(
          fmt::format("agreeing with the other {} nodes on a network took {:.0f} ms", nodes.size() - 1, took.count()));
      choice.warning = agreeing.warning();
      choice.step_ends = decision->step_ends();
    } catch (const std::exception& error) {
      choice.warning = fmt::format(
          "{} does not agree with the other nodes on a network: {}; it uses the interface "
          "that routes to them",
          question.node_name, error.what());
    }
  }
  const topology::Agreement agreement{.subnet = decision ? decision->subnet : std::nullopt,
                                      .reason = decision ? decision->reason : std::string("it routes to the others")};
  if (own.candidates.empty()) return choice;
  const bool alone = own.candidates.size() == 1;
  const auto& chosen = own.candidates[alone ? 0 : topology::pick(note, agreement)];
  choice.interface = {
      .name = chosen.interface, .address = chosen.at.address.address, .reason = alone ? own.reason : agreement.reason};
  return choice;
}

NetworkChoice choose_network(const PlanQuestion& question, const base::Environment& environment) {
  NetworkChoice choice;
  std::vector<std::string> nodes;
  std::vector<std::string> peers;
  topology::CandidateSearch own;
  try {
    nodes = each_once(topology::expand_hostlist(question.node_list));
    peers = nodes;
    std::erase(peers, question.node_name);
    own = topology::find_candidates(environment, topology::read_usable_interfaces(),
                                    topology::read_rdma_devices("/sys"), peers,
                                    peers.empty() ? topology::JobSpan::one_node : topology::JobSpan::several_nodes);
  } catch (const Error& error) {
    choice.remarks.push_back(fmt::format("no network interface is chosen: {}", error.what()));
  }
  if (peers.empty()) {
    if (!own.candidates.empty()) choice.interface = {.name = own.candidates.front().interface, .reason = own.reason};
    return choice;
  }
  // also a node without candidates: the others wait for it
  const std::chrono::seconds patience{question.patience_seconds};
  const AgreementLimits limits{.first = patience, .others = patience + kDecisionPatience};
  NetworkChoice agreed = choose_between_nodes(own, question, nodes, limits);
  std::string local = topology::local_interface_warning(environment, known_interfaces(), agreed.interface.name);
  if (!local.empty() && question.node_name == nodes.front()) {
    agreed.warning += (agreed.warning.empty() ? "" : "; ") + local;
  } else if (!local.empty()) {
    agreed.remarks.push_back(std::move(local));
  }
  agreed.remarks.insert(agreed.remarks.begin(), choice.remarks.begin(), choice.remarks.end());
  return agreed;
}

}  // namespace ddp::srun_plugin
