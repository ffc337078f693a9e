#include "support/pmix_node_process.hpp"

#include <poll.h>
#include <sys/prctl.h>

#include "agent/arrival_desk.hpp"
#include "base/byte_stream.hpp"
#include "base/env_table.hpp"
#include "base/errors.hpp"
#include "base/socket.hpp"
#include "kvs/pmix_library.hpp"
#include "pmix_server/pmix_server.hpp"

// There in programs that are built with the leak sanitizer.
extern "C" __attribute__((weak)) int __lsan_do_recoverable_leak_check();

namespace ddp::test {
namespace {

constexpr std::chrono::seconds kNodeSendLimit{30};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

class Node {
 public:
  Node(const NodeOrders& orders, int socket)
      : orders_(orders), socket_(socket), server_(std::in_place, "/tmp"), job_(std::in_place, *server_, orders.shape) {
    for (int node = 0; node < orders.shape.node_rank; ++node) {
      first_ += orders.shape.nodes[static_cast<std::size_t>(node)].num_ranks;
    }
    count_ = orders.shape.nodes[static_cast<std::size_t>(orders.shape.node_rank)].num_ranks;
    for (int rank = first_; rank < first_ + count_; ++rank) start(rank);
  }

  /// Until the order to quit.
  void run() {
    while (!quit_) {
      std::vector<pollfd> entries{{.fd = socket_, .events = POLLIN, .revents = 0},
                                  {.fd = server_->modex().fd(), .events = POLLIN, .revents = 0}};
      for (const Rank& rank : ranks_) entries.push_back({.fd = rank.output.get(), .events = POLLIN, .revents = 0});
      ::poll(entries.data(), entries.size(), 1000);
      server_->modex().answer_overdue();
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        if (entries[i + 2].revents != 0) read_output(ranks_[i]);
      }
      if (entries[1].revents != 0) pass_on();
      if (entries[0].revents != 0) obey();
    }
  }

  void take_down() {
    if (clients_died_) server_->abandon();
    job_.reset();
    server_.reset();
  }

 private:
  struct Rank {
    int number;
    pid_t pid;
    base::UniqueFd output;
    std::string text{};
  };

  void start(int rank) {
    std::vector<std::string> environment;
    const auto own = base::Environment::process();
    for (const auto& [name, value] : own.variables()) {
      if (!name.starts_with("PMI") && !name.starts_with("SLURM_")) environment.push_back(name + "=" + value);
    }
    for (const auto& [name, value] : job_->client_environment(rank)) environment.push_back(name + "=" + value);
    for (const std::string& line : orders_.environment) environment.push_back(line);
    const int local = static_cast<int>(ranks_.size());
    environment.push_back("RANK=" + std::to_string(rank));
    environment.push_back("LOCAL_RANK=" + std::to_string(local));
    std::vector<std::string> arguments = orders_.command;
    const std::vector<char*> argument_list = pointers(arguments);
    const std::vector<char*> environment_list = pointers(environment);

    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw base::system_error("starting a rank (pipe2)", errno);
    base::UniqueFd read_end{ends[0]};
    const base::UniqueFd write_end{ends[1]};
    const pid_t pid = ::fork();
    if (pid < 0) throw base::system_error("starting a rank (fork)", errno);
    if (pid == 0) {  // the library has a thread: only calls that are safe after fork
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(write_end.get(), STDOUT_FILENO);
      ::dup2(write_end.get(), STDERR_FILENO);
      ::execve(argument_list[0], argument_list.data(), environment_list.data());
      ::_exit(127);
    }
    ranks_.push_back({.number = rank, .pid = pid, .output = std::move(read_end)});
  }

  void tell(const NodeMessage& message) {
    base::send_all(socket_, frame(message), Deadline::after(kNodeSendLimit), "a message to the coordinator");
  }

  void read_output(Rank& rank) {
    std::array<char, 65536> chunk;
    const ssize_t got = ::read(rank.output.get(), chunk.data(), chunk.size());
    if (got > 0) {
      rank.text.append(chunk.data(), static_cast<std::size_t>(got));
      return;
    }
    rank.output.reset();
    int status = 0;
    ::waitpid(rank.pid, &status, 0);
    tell({.kind = NodeMessage::Kind::rank_ended,
          .id = 0,
          .rank = rank.number,
          .status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
          .data = base::to_bytes(rank.text)});
  }

  void pass_on() {
    launcher::ModexEvents events = server_->modex().take();
    for (launcher::FenceCall& call : events.fences) {
      tell({.kind = NodeMessage::Kind::fence,
            .id = call.id,
            .rank = 0,
            .status = 0,
            .ranks = std::move(call.ranks),
            .data = std::move(call.data)});
    }
    for (const launcher::ModexCall& call : events.calls) {
      if (!call.arrival.empty()) {
        arrivals_.add(call, Deadline::Clock::now());
        continue;
      }
      tell({.kind = NodeMessage::Kind::call, .id = call.id, .rank = call.rank, .status = 0});
    }
    for (launcher::ModexAnswer& answer : events.answers) {
      tell({.kind = NodeMessage::Kind::found,
            .id = answer.id,
            .rank = 0,
            .status = answer.status,
            .data = std::move(answer.data)});
    }
    for (const launcher::RanksWithout& found : events.without) {
      tell_absence(launcher::control::AbsentFound{.name = found.name, .ranks = launcher::ranges_of(found.ranks)});
    }
  }

  void tell_absence(const launcher::control::Message& message) {
    tell({.kind = NodeMessage::Kind::absence, .data = launcher::control::encode(message)});
  }

  void take_absence(const Bytes& bytes) {
    const launcher::control::Message message = launcher::control::decode(bytes);
    if (const auto* found = std::get_if<launcher::control::AbsentFound>(&message)) return arrivals_.found(*found);
    server_->modex().find_without(job_->name(), first_, count_, std::get<launcher::control::FindAbsent>(message).name);
  }

  void obey() {
    std::array<std::byte, 65536> chunk;
    const ssize_t got = ::read(socket_, chunk.data(), chunk.size());
    if (got <= 0) ::_exit(9);  // the test has ended, and the ranks end with this process
    received_.insert(received_.end(), chunk.begin(), chunk.begin() + got);
    for (NodeMessage message; take_message(received_, message);) follow(std::move(message));
  }

  void follow(NodeMessage message) {
    switch (message.kind) {
      case NodeMessage::Kind::answer:
        server_->modex().answer(message.id, message.status, std::move(message.data));
        break;
      case NodeMessage::Kind::fetch: server_->modex().fetch_local(job_->name(), message.rank, message.id); break;
      case NodeMessage::Kind::signal:
        for (const Rank& rank : ranks_) {
          if (rank.number == message.rank && rank.output) ::kill(rank.pid, message.status);
        }
        break;
      case NodeMessage::Kind::absence: take_absence(message.data); break;
      case NodeMessage::Kind::over: server_->modex().answer_all(message.status); break;
      case NodeMessage::Kind::quit:
        quit_ = true;
        clients_died_ = message.status != 0;
        break;
      default: break;
    }
  }

  const NodeOrders& orders_;
  int socket_;
  std::optional<launcher::PmixServer> server_;
  std::optional<launcher::JobNamespace> job_;
  launcher::ArrivalDesk arrivals_{0, [this](const launcher::control::FindAbsent& question) { tell_absence(question); },
                                  [this](std::uint64_t call) { server_->modex().answer(call, kvs::kHasArrived, {}); }};
  int first_ = 0;
  int count_ = 0;
  std::vector<Rank> ranks_;
  Bytes received_;
  bool quit_ = false;
  bool clients_died_ = false;
};

}  // namespace

Bytes frame(const NodeMessage& message) {
  base::ByteWriter body;
  body.integer(static_cast<std::uint8_t>(message.kind))
      .integer(message.id)
      .integer(message.rank)
      .integer(message.status)
      .integer(static_cast<std::uint32_t>(message.ranks.size()));
  for (const int rank : message.ranks) body.integer(rank);
  body.blob(message.data);
  return base::ByteWriter{}.blob(body.bytes()).bytes();
}

bool take_message(Bytes& received, NodeMessage& message) {
  constexpr std::size_t kLength = sizeof(std::uint32_t);
  if (received.size() < kLength) return false;
  base::ByteReader reader{received, "node message"};
  const auto length = reader.integer<std::uint32_t>();
  if (reader.left() < length) return false;
  message.kind = static_cast<NodeMessage::Kind>(reader.integer<std::uint8_t>());
  message.id = reader.integer<std::uint64_t>();
  message.rank = reader.integer<int>();
  message.status = reader.integer<int>();
  message.ranks.clear();
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) message.ranks.push_back(reader.integer<int>());
  const auto data = reader.blob();
  message.data.assign(data.begin(), data.end());
  received.erase(received.begin(), received.begin() + static_cast<std::ptrdiff_t>(kLength + length));
  return true;
}

int run_node(const NodeOrders& orders, int socket) {
  sigset_t user_signal;  // ranks inherit the mask: it may come before they can block it
  sigemptyset(&user_signal);
  sigaddset(&user_signal, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &user_signal, nullptr);
  try {
    Node node{orders, socket};
    node.run();
    node.take_down();
  } catch (const std::exception& error) {
    const NodeMessage message{
        .kind = NodeMessage::Kind::failed, .id = 0, .rank = 0, .status = 0, .data = base::to_bytes(error.what())};
    base::send_all(socket, frame(message), Deadline::after(kNodeSendLimit), "a failure to the coordinator");
    return 1;
  }
  if (__lsan_do_recoverable_leak_check != nullptr && __lsan_do_recoverable_leak_check() != 0) return 23;
  return 0;
}

}  // namespace ddp::test
