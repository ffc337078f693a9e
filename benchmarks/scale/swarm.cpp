// What a job's coordinator sends, holds and computes when many nodes join: the real Coordinator in a process of its
// own, and in another one agents without ranks, which speak the control protocol as ddprun's do.
//
//   bench_scale_swarm NODES RANKS_PER_NODE FENCE_BYTES NAMES [asks|requests]
//
// FENCE_BYTES: what each rank contributes to each of two fences; 0: no fence. NAMES: the hosts' names, "ranges" (n17)
// or "scattered" (no number follows another). With the last word rank 0 is absent from a fence, and each other node
// finds that out: "asks" by one question, "requests" by a direct modex request for each rank, as for MPI. Prints a JSON
// object.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "control/handshake.hpp"
#include "coordinator/coordinator.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::minutes kLimit{5};
constexpr int kFences = 2;
constexpr auto kValue = "ddp.fence.1";
constexpr std::size_t kValueBytes = 330;  // of a rank in a fence
constexpr int kJoiners = 16;              // threads that shake hands

struct Swarm {
  int nodes;
  int ranks_per_node;
  std::size_t fence_bytes;
  bool scattered;
  std::string absent;  ///< how nodes find that rank 0 is; empty: it is not
  int ranks() const { return nodes * ranks_per_node; }
};

/// What the coordinator's process reports of itself, over a pipe.
struct Usage {
  std::int64_t before_kib = 0;  ///< resident, before the first agent joined
  std::int64_t most_kib = 0;
  double cpu_s = 0;
};

std::int64_t status_kib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::atoll(line.c_str() + field.size());
  }
  return 0;
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

PeerLimits patient() { return {.beat = kLimit / 10, .peer_timeout = kLimit, .answer = kLimit, .end_answer = kLimit}; }

int lead(const Swarm& swarm, const control::Secret& secret, int to_swarm) {
  stream::EventLoop loop;
  CoordinatorOptions options;
  options.membership = {
      .min_nodes = swarm.nodes, .max_nodes = swarm.nodes, .run_id = "swarm", .version = "1", .join_timeout = kLimit};
  options.job_console = true;
  options.peers = patient();
  Coordinator coordinator(options, loop,
                          {.detail = [](const std::string&) {},
                           .note = [](const std::string& text) { fmt::print(stderr, "{}\n", text); },
                           .joined = [](int, int) {},
                           .started = [](int, int, int) {},
                           .restarting = [](const JobOutcome&, int, int) {}});
  auto listener = std::make_unique<control::Listener>("127.0.0.1", 0, secret);
  const std::uint16_t port = listener->port();
  coordinator.listen(std::move(listener));
  Usage usage{.before_kib = status_kib("VmRSS:")};
  const double began = cpu_seconds();
  if (::write(to_swarm, &port, sizeof port) != sizeof port) return 1;
  const Deadline limit = Deadline::after(kLimit);
  while (!coordinator.finished() && !limit.expired()) {
    loop.run_once(earlier(limit, coordinator.next_deadline().value_or(limit)));
    coordinator.time_passed();
  }
  usage.most_kib = status_kib("VmHWM:");
  usage.cpu_s = cpu_seconds() - began;
  if (::write(to_swarm, &usage, sizeof usage) != sizeof usage) return 1;
  return coordinator.finished() ? coordinator.exit_status() : 1;
}

/// A node's agent, whose ranks are only claimed.
class FakeAgent {
 public:
  FakeAgent(const Swarm& swarm, int number, stream::EventLoop& loop, control::Connection connection, int& done)
      : swarm_(swarm),
        number_(number),
        all_done_(done),
        connection_(
            loop, std::move(connection), [this](const control::Message& message) { answer(message); },
            [this](const std::string& why) {
              if (!done_) throw std::runtime_error("an agent was lost: " + why);
            }) {
    connection_.send(control::Hello{.version = "1",
                                    .run_id = "swarm",
                                    .host = name(number),
                                    .addresses = {"10.0.0.1", "10.1.0.1"},
                                    .order = number,
                                    .nproc = swarm.ranks_per_node,
                                    .role = "default",
                                    .program = "train.py",
                                    .pid = 4711,
                                    .interfaces = {{.name = "eth0", .address = "10.0.0.1", .prefix_length = 16},
                                                   {.name = "ib0", .address = "10.1.0.1", .prefix_length = 16}}});
  }

  std::uint64_t bytes_before_fences() const { return before_fences_; }
  std::uint64_t all_bytes() const { return all_; }
  std::uint64_t messages() const { return messages_; }
  /// What the socket has taken in, as the network carries it.
  std::uint64_t received() const {
    tcp_info info{};
    socklen_t size = sizeof info;
    ::getsockopt(connection_.fd(), IPPROTO_TCP, TCP_INFO, &info, &size);
    return info.tcpi_bytes_received;
  }

 private:
  std::string name(int number) const {
    if (!swarm_.scattered) return fmt::format("n{:05}", number);
    return fmt::format("gpu-pool-{:05x}", (static_cast<unsigned>(number) * 2'654'435'761U) >> 12U);
  }

  void answer(const control::Message& message) {
    if (const auto* plan = std::get_if<control::PrepareAttempt>(&message)) {
      if (plan->nodes.size() != static_cast<std::size_t>(swarm_.nodes)) throw std::runtime_error("a node is missing");
      connection_.send(
          control::AttemptPrepared{.epoch = 0, .store_port = plan->serve_store ? 29500 : 0, .store_key = "key"});
    } else if (std::get_if<control::StartAttempt>(&message) != nullptr) {
      control::RanksStarted started{.epoch = 0};
      started.pids.resize(static_cast<std::size_t>(swarm_.ranks_per_node), 4712);
      connection_.send(started);
      before_fences_ = received();
      if (!swarm_.absent.empty()) return find_absent();
      swarm_.fence_bytes > 0 ? enter_fence() : end_ranks();
    } else if (const auto* fence = std::get_if<control::Fence>(&message)) {
      if (fence->data.size() != contribution() * static_cast<std::size_t>(swarm_.nodes))
        throw std::runtime_error("a fence's answer is incomplete");
      ++fences_ < kFences ? enter_fence() : end_ranks();
    } else if (!swarm_.absent.empty() && concerns_absent(message)) {
      ++messages_;
      learn_of_absent(message);
    } else if (std::get_if<control::EndAttempt>(&message) != nullptr) {
      connection_.send(control::AttemptCleaned{.epoch = 0});
    } else if (std::get_if<control::Finish>(&message) != nullptr) {
      all_ = received();
      done_ = true;
      ++all_done_;
    }
  }
  std::size_t contribution() const { return swarm_.fence_bytes * static_cast<std::size_t>(swarm_.ranks_per_node); }
  static bool concerns_absent(const control::Message& message) {
    return std::holds_alternative<control::FindAbsent>(message) ||
           std::holds_alternative<control::AbsentFound>(message) ||
           std::holds_alternative<control::ModexRequest>(message) ||
           std::holds_alternative<control::ModexReply>(message);
  }
  void send_counted(const control::Message& message) {
    ++messages_;
    connection_.send(message);
  }
  /// All ranks of the other nodes are in the fence.
  void find_absent() {
    if (number_ == 0) return;
    if (swarm_.absent == "asks") {
      connection_.send(control::Fence{.epoch = 0});
      return send_counted(control::FindAbsent{.epoch = 0, .name = kValue, .limit_ms = 600'000});
    }
    const int first = number_ * swarm_.ranks_per_node;
    for (int rank = 0; rank < swarm_.ranks(); ++rank) {
      if (rank < first || rank >= first + swarm_.ranks_per_node)
        send_counted(control::ModexRequest{.epoch = 0, .id = rank, .from_node = -1, .rank = rank});
    }
  }
  void learn_of_absent(const control::Message& message) {
    const std::vector<control::RankRange> rank_zero{{.first = 0, .count = 1}};
    const int others = swarm_.ranks() - swarm_.ranks_per_node;
    if (std::holds_alternative<control::FindAbsent>(message)) {
      control::AbsentFound found{.epoch = 0, .name = kValue};
      if (number_ == 0) found.ranks = rank_zero;
      send_counted(found);
      if (number_ == 0) end_ranks();
    } else if (const auto* found = std::get_if<control::AbsentFound>(&message)) {
      if (found->ranks != rank_zero) throw std::runtime_error("other ranks are absent");
      end_ranks();
    } else if (const auto* request = std::get_if<control::ModexRequest>(&message)) {
      if (request->rank != 0)
        send_counted(control::ModexReply{
            .epoch = 0, .id = request->id, .to_node = request->from_node, .data = Bytes(kValueBytes)});
      if (number_ == 0 && ++seen_ == others) end_ranks();
    } else if (++seen_ == others - 1) {
      end_ranks();
    }
  }
  void enter_fence() { connection_.send(control::Fence{.epoch = 0, .data = Bytes(contribution())}); }
  void end_ranks() {
    for (int local = 0; local < swarm_.ranks_per_node; ++local)
      connection_.send(control::RankEnded{.epoch = 0, .local_rank = local});
  }

  const Swarm& swarm_;
  const int number_;
  int& all_done_;
  LoopConnection connection_;
  int fences_ = 0;
  int seen_ = 0;                ///< requests, or replies
  std::uint64_t messages_ = 0;  ///< about absent ranks, sent and received
  bool done_ = false;
  std::uint64_t before_fences_ = 0;
  std::uint64_t all_ = 0;
};

std::vector<control::Connection> connect_all(const Swarm& swarm, const control::Secret& secret, std::uint16_t port) {
  std::vector<std::optional<control::Connection>> made(static_cast<std::size_t>(swarm.nodes));
  std::vector<std::thread> threads;
  for (int first = 0; first < kJoiners; ++first) {
    threads.emplace_back([&, first] {
      for (auto i = static_cast<std::size_t>(first); i < made.size(); i += kJoiners)
        made[i].emplace(control::connect({"127.0.0.1"}, port, secret, Deadline::after(kLimit)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<control::Connection> connections;
  for (auto& each : made) connections.push_back(*std::move(each));
  return connections;
}

int run(const Swarm& swarm) {
  const rlimit files{.rlim_cur = static_cast<rlim_t>(swarm.nodes) * 2 + 2'000,
                     .rlim_max = static_cast<rlim_t>(swarm.nodes) * 2 + 2'000};
  ::setrlimit(RLIMIT_NOFILE, &files);
  const control::Secret secret = control::Secret::random();
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) return 1;
  const pid_t pid = ::fork();
  if (pid == 0) {
    int status = 1;
    try {
      status = lead(swarm, secret, pipe[1]);
    } catch (const std::exception& error) {
      fmt::print(stderr, "the coordinator: {}\n", error.what());
    }
    ::_exit(status);
  }
  std::uint16_t port = 0;
  if (::read(pipe[0], &port, sizeof port) != sizeof port) return 1;

  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
  };
  const auto began = Clock::now();
  std::vector<control::Connection> connections = connect_all(swarm, secret, port);
  const double joined_s = seconds_since(began);
  const auto greeted = Clock::now();
  stream::EventLoop loop;
  std::vector<std::unique_ptr<FakeAgent>> agents;
  int done = 0;
  for (control::Connection& connection : connections) {
    const int number = static_cast<int>(agents.size());
    agents.push_back(std::make_unique<FakeAgent>(swarm, number, loop, std::move(connection), done));
  }
  const Deadline limit = Deadline::after(kLimit);
  while (done < swarm.nodes && !limit.expired()) loop.run_once(limit);
  const double ran_s = seconds_since(greeted);
  std::uint64_t before_fences = 0;
  std::uint64_t all = 0;
  std::uint64_t messages = 0;
  for (const auto& agent : agents) {
    messages += agent->messages();
    before_fences += agent->bytes_before_fences();
    all += agent->all_bytes();
  }
  agents.clear();
  Usage usage;
  if (::read(pipe[0], &usage, sizeof usage) != sizeof usage) return 1;
  int status = 0;
  ::waitpid(pid, &status, 0);
  fmt::print(
      "{{\"nodes\": {}, \"ranks\": {}, \"start_bytes\": {}, \"all_bytes\": {}, \"messages\": {}, \"held_kib\": {}, "
      "\"cpu_s\": {:.3f}, "
      "\"join_s\": {:.3f}, \"run_s\": {:.3f}}}\n",
      swarm.nodes, swarm.nodes * swarm.ranks_per_node, before_fences, all, messages, usage.most_kib - usage.before_kib,
      usage.cpu_s, joined_s, ran_s);
  return status == 0 && done == swarm.nodes ? 0 : 1;
}

}  // namespace
}  // namespace ddp::launcher

int main(int count, char** words) try {
  if (count < 5 || count > 6) {
    fmt::print(stderr, "usage: {} NODES RANKS_PER_NODE FENCE_BYTES ranges|scattered [asks|requests]\n", words[0]);
    return 2;
  }
  return ddp::launcher::run({.nodes = std::atoi(words[1]),
                             .ranks_per_node = std::atoi(words[2]),
                             .fence_bytes = static_cast<std::size_t>(std::atoll(words[3])),
                             .scattered = std::string(words[4]) == "scattered",
                             .absent = count == 6 ? words[5] : ""});
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
