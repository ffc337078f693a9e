#include "support/pmix_nodes.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <set>

#include <fmt/ranges.h>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/socket.hpp"
#include "support/pmix_node_process.hpp"

namespace ddp::test {
namespace {

constexpr std::chrono::seconds kSendLimit{30};
constexpr int kPollMs = 50;  // so that conditions on time are seen

}  // namespace

PmixNodes::PmixNodes(std::vector<launcher::NodeShape> nodes, const std::string& node_names,
                     const std::vector<std::string>& command, const std::vector<std::string>& extra_environment) {
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    node_of_.insert(node_of_.end(), static_cast<std::size_t>(nodes[node].num_ranks), static_cast<int>(node));
  }
  ranks_.resize(node_of_.size());
  std::vector<int> first_rank{0};
  for (const launcher::NodeShape& node : nodes) first_rank.push_back(first_rank.back() + node.num_ranks);
  inquiries_.emplace(0, std::move(first_rank));
  NodeOrders orders{.shape = {.name_space = launcher::make_namespace_name("test", 0), .nodes = nodes, .node_rank = 0},
                    .command = command,
                    .environment = extra_environment};
  orders.environment.push_back("TEST_NODE_NAMES=" + node_names);
  orders.environment.push_back(fmt::format("TEST_NODE_OF={}", fmt::join(node_of_, ",")));
  orders.environment.push_back(fmt::format("WORLD_SIZE={}", node_of_.size()));
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw base::system_error("starting a node (socketpair)", errno);
    }
    base::UniqueFd own{ends[0]};
    const base::UniqueFd other{ends[1]};
    orders.shape.node_rank = static_cast<int>(node);
    const pid_t pid = ::fork();
    if (pid < 0) throw base::system_error("starting a node (fork)", errno);
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      own.reset();
      nodes_.clear();
      ::_exit(run_node(orders, other.get()));
    }
    nodes_.push_back({.pid = pid, .socket = std::move(own)});
  }
}

PmixNodes::~PmixNodes() {
  for (Node& node : nodes_) {
    if (node.pid < 0) continue;
    ::kill(node.pid, SIGKILL);
    ::waitpid(node.pid, nullptr, 0);
  }
}

bool PmixNodes::run_until(const std::function<bool()>& condition, Deadline deadline) {
  while (!condition()) {
    if (deadline.expired()) return false;
    std::vector<pollfd> entries;
    for (const Node& node : nodes_) entries.push_back({.fd = node.socket.get(), .events = POLLIN, .revents = 0});
    ::poll(entries.data(), entries.size(), kPollMs);
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      if (entries[node].revents != 0) receive(static_cast<int>(node));
    }
    send_absences(inquiries_->time_passed(Deadline::Clock::now()));
  }
  return true;
}

void PmixNodes::receive(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  std::array<std::byte, 65536> chunk;
  const ssize_t got = ::read(node.socket.get(), chunk.data(), chunk.size());
  if (got <= 0) {
    node.socket.reset();
    return;
  }
  node.received.insert(node.received.end(), chunk.begin(), chunk.begin() + got);
  for (NodeMessage message; take_message(node.received, message);) {
    observe(message, number);
    handle(number, std::move(message));
  }
}

void PmixNodes::handle(int node, NodeMessage message) {
  switch (message.kind) {
    case NodeMessage::Kind::fence: {
      ++fences_;
      const std::vector<int> ranks = message.ranks;
      Contributions& open = open_fences_.try_emplace(ranks, nodes_.size()).first->second;
      open[static_cast<std::size_t>(node)].push_back(std::move(message));
      if (!hold_fences) complete_fences(ranks);
      break;
    }
    case NodeMessage::Kind::call:
      ++calls_;
      open_calls_[next_call_] = {node, message.id};
      if (!hold_calls) {
        send(node_of(message.rank),
             {.kind = NodeMessage::Kind::fetch, .id = next_call_, .rank = message.rank, .status = 0});
      }
      ++next_call_;
      break;
    case NodeMessage::Kind::found: {
      const auto call = open_calls_.find(message.id);
      if (call == open_calls_.end()) break;
      const auto [asker, id] = call->second;
      open_calls_.erase(call);
      message.kind = NodeMessage::Kind::answer;
      message.id = id;
      send(asker, message);
      break;
    }
    case NodeMessage::Kind::absence: find_absent(node, message.data); break;
    case NodeMessage::Kind::rank_ended: {
      RankEnd& end = ranks_.at(static_cast<std::size_t>(message.rank));
      end = {.ended = true,
             .exit_code = message.status >= 0 ? message.status : -1,
             .signal = message.status < 0 ? -message.status : 0,
             .output = base::to_text(message.data)};
      break;
    }
    case NodeMessage::Kind::failed: failures_ += fmt::format("node {}: {}\n", node, base::to_text(message.data)); break;
    default: break;
  }
}

void PmixNodes::complete_fences(const std::vector<int>& ranks) {
  std::set<int> takes_part;
  for (const int rank : ranks) takes_part.insert(node_of(rank));
  if (ranks.empty()) takes_part.insert(node_of_.begin(), node_of_.end());
  Contributions& open = open_fences_.at(ranks);
  const auto waits = [&](int node) { return !open[static_cast<std::size_t>(node)].empty(); };
  while (std::all_of(takes_part.begin(), takes_part.end(), waits)) {
    Bytes all;
    for (const int node : takes_part) {
      const Bytes& data = open[static_cast<std::size_t>(node)].front().data;
      all.insert(all.end(), data.begin(), data.end());
    }
    for (const int node : takes_part) {
      auto& queue = open[static_cast<std::size_t>(node)];
      send(node, {.kind = NodeMessage::Kind::answer,
                  .id = queue.front().id,
                  .rank = 0,
                  .status = fence_status,
                  .data = fence_status == 0 ? all : Bytes{}});
      queue.erase(queue.begin());
    }
  }
}

void PmixNodes::find_absent(int node, const Bytes& bytes) {
  ++absences_;
  const launcher::control::Message message = launcher::control::decode(bytes);
  if (const auto* found = std::get_if<launcher::control::AbsentFound>(&message))
    return send_absences(inquiries_->found(node, *found, Deadline::Clock::now()));
  std::set<int> in_fence;
  if (const auto open = open_fences_.find({}); open != open_fences_.end()) {
    for (std::size_t each = 0; each < nodes_.size(); ++each) {
      if (!open->second[each].empty()) in_fence.insert(static_cast<int>(each));
    }
  }
  send_absences(
      inquiries_->ask(node, std::get<launcher::control::FindAbsent>(message), in_fence, Deadline::Clock::now()));
}

void PmixNodes::send_absences(const launcher::AbsenceInquiries::Outgoing& outgoing) {
  for (const auto& [node, message] : outgoing) {
    ++absences_;
    send(node, {.kind = NodeMessage::Kind::absence, .data = launcher::control::encode(message)});
  }
}

void PmixNodes::release_fences() {
  hold_fences = false;
  for (const auto& entry : open_fences_) complete_fences(entry.first);
}

void PmixNodes::signal(int rank, int number) {
  send(node_of(rank), {.kind = NodeMessage::Kind::signal, .id = 0, .rank = rank, .status = number});
}

void PmixNodes::end_attempt(int status) {
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    send(static_cast<int>(node), {.kind = NodeMessage::Kind::over, .id = 0, .rank = 0, .status = status});
  }
}

void PmixNodes::send(int node, const NodeMessage& message) {
  base::send_all(nodes_.at(static_cast<std::size_t>(node)).socket.get(), frame(message), Deadline::after(kSendLimit),
                 "a message to a node");
}

bool PmixNodes::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankEnd& rank) { return rank.ended; });
}

std::string PmixNodes::take_down(Deadline deadline) {
  const bool died = std::any_of(ranks_.begin(), ranks_.end(), [](const RankEnd& rank) { return rank.exit_code != 0; });
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    send(static_cast<int>(node), {.kind = NodeMessage::Kind::quit, .id = 0, .rank = 0, .status = died ? 1 : 0});
  }
  run_until(
      [&] { return std::none_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return bool{node.socket}; }); },
      deadline);
  std::string wrong = failures_;
  for (std::size_t number = 0; number < nodes_.size(); ++number) {
    Node& node = nodes_[number];
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(node.pid, &status, WNOHANG)) == 0 && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (ended == 0) {
      wrong += fmt::format("node {} does not end\n", number);
      continue;
    }
    node.pid = -1;
    if (WIFSIGNALED(status)) wrong += fmt::format("node {} was ended by signal {}\n", number, WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
      wrong += fmt::format("node {} ended with exit code {}\n", number, WEXITSTATUS(status));
    }
  }
  return wrong;
}

}  // namespace ddp::test
