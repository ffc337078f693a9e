#include "launch/rendezvous.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>
#include <ddp/key_value_store.hpp>

#include "base/errors.hpp"
#include "base/host_name.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "base/socket.hpp"
#include "cli/option_values.hpp"
#include "kvs/pmi_store.hpp"
#include "kvs/pmix_store.hpp"
#include "launch/own_network.hpp"
#include "launch/waiting_hint.hpp"
#include "options/host_list.hpp"

namespace ddp::launcher {
namespace {

// torchrun's ports: of a static rendezvous, and c10d's default.
constexpr std::uint16_t kStaticPort = 29500;
constexpr std::uint16_t kDynamicPort = 29400;

/// Null: another agent of this host leads. Linux may refuse the port to both of two processes that listen at the same
/// moment (it looks for other listeners after marking the socket), so they retry after random pauses.
std::unique_ptr<control::Listener> listen_unless_another_does(const std::vector<std::string>& addresses,
                                                              std::uint16_t port,
                                                              const std::shared_ptr<control::Prover>& prover) {
  constexpr int kTries = 4;
  constexpr int kLongestPauseMs = 30;
  std::random_device source;
  for (int left = kTries; left > 0; --left) {
    try {
      return std::make_unique<control::Listener>(addresses, port, prover);
    } catch (const Error& error) {
      if (error.detail().native.find("EADDRINUSE") == std::string::npos) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(source() % kLongestPauseMs));
  }
  return nullptr;
}

/// Addresses for an agent that must lead.
std::vector<std::string> addresses_to_lead_at(const std::string& host, bool told_to_lead, Deadline deadline) {
  std::vector<std::string> addresses = listening_addresses(host, deadline);
  if (!addresses.empty()) return addresses;
  if (told_to_lead) return {""};  // the address may be translated
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "listening for the job's other nodes",
               .cause = fmt::format("{}, node 0, has no address '{}'", base::host_name(), host),
               .hint = "give a name or an address of node 0 as --master-addr or --rdzv-endpoint; where a gateway "
                       "translates it, add --rdzv-conf is_host=1 on node 0"}};
}

/// Position in the host list, or the number of Slurm's task: one per node, in the user's order.
std::int64_t place_of_agent(const base::Environment& environment) {
  const auto part = environment.raw(kAgentHostVariable);
  if (!part) return environment.number("SLURM_PROCID").value_or(-1);
  return cli::parse_whole(kAgentHostVariable, std::string_view(*part).substr(0, part->find(':')), 0, kMaxNodes - 1);
}

}  // namespace

control::Connection Rendezvous::connect(const std::string& remark) const {
  std::mutex mutex;
  std::string found;
  std::optional<WaitNotice> notice;
  // Agents that a frontend started, or that follow a step's first task, leave the notice to that process.
  if (host.empty())
    notice.emplace([&] {
      const std::lock_guard lock(mutex);
      return fmt::format("waiting for the job's coordinator at {}:{}, for {} more{}{}{}{}", fmt::join(addresses, ", "),
                         port, duration_text(deadline.remaining()), found.empty() ? "" : ": ", found,
                         remark.empty() ? "" : "; ", remark);
    });
  try {
    return control::connect(addresses, port, provers, deadline, std::chrono::seconds(3), [&](std::string cause) {
      const std::lock_guard lock(mutex);
      found = std::move(cause);
    });
  } catch (const Error& error) {
    if (port_taken.empty() && remark.empty()) throw;
    ErrorDetail detail = error.detail();
    const auto add = [&detail](const std::string& more) {
      if (!more.empty()) detail.hint += (detail.hint.empty() ? "" : "; ") + more;
    };
    if (!port_taken.empty()) add(port_taken + ": choose another port unless it belongs to this job");
    add(remark);
    throw Error{std::move(detail)};
  }
}

FrontendRendezvous meet_as_frontend(const std::vector<std::string>& addresses) {
  FrontendRendezvous rendezvous{
      .point = {.addresses = addresses, .port = 0, .secret = control::Secret::random(), .host = base::host_name()}};
  rendezvous.listener =
      std::make_unique<control::Listener>(addresses, 0, control::job_secret_prover(rendezvous.point.secret));
  rendezvous.point.port = rendezvous.listener->port();
  return rendezvous;
}

Rendezvous meet_as_frontend_agent(const base::Environment& environment, Deadline deadline) {
  RendezvousPoint point = RendezvousPoint::decode(environment.raw(kAgentVariable).value_or(""));
  return {.addresses = std::move(point.addresses),
          .port = point.port,
          .provers = control::job_secret_provers(point.secret),
          .order = place_of_agent(environment),
          .host = std::move(point.host),
          .deadline = deadline};
}

Rendezvous meet_at_endpoint(const LaunchOptions& options, const base::Environment& environment,
                            Deadline::Clock::time_point began) {
  const RendezvousOptions& wanted = options.rendezvous;
  const bool fixed = wanted.backend != RendezvousBackend::c10d;
  const bool endpoint = !wanted.endpoint_host.empty();
  const std::string host = endpoint ? wanted.endpoint_host : wanted.master_addr;
  std::uint16_t port = fixed ? kStaticPort : kDynamicPort;
  if (endpoint && wanted.endpoint_port) {
    port = *wanted.endpoint_port;
  } else if (!endpoint && wanted.master_port) {
    port = *wanted.master_port;
  }
  const int node_rank = wanted.node_rank.value_or(0);
  const Deadline deadline{began + (fixed ? wanted.static_timeout : std::min(wanted.read_timeout, wanted.join_timeout))};
  const auto proof = std::make_shared<RendezvousProof>(environment, wanted.insecure, base::host_name());
  Rendezvous rendezvous{.addresses = {host},
                        .port = port,
                        .provers = [proof](const control::Announcement& asked) { return proof->follower(asked); },
                        .order = fixed ? node_rank : -1,
                        .deadline = deadline};
  const bool must_lead = wanted.is_host.value_or(fixed && node_rank == 0);
  const bool may_lead = !wanted.is_host && !fixed && is_own_name(host, deadline);
  if (!must_lead && !may_lead) return rendezvous;
  const std::vector<std::string> addresses = addresses_to_lead_at(host, wanted.is_host.has_value(), deadline);
  const auto prover = proof->leader();
  if (must_lead) {
    rendezvous.listener = std::make_unique<control::Listener>(addresses, port, prover);
  } else {
    rendezvous.listener = listen_unless_another_does(addresses, port, prover);
    if (!rendezvous.listener)
      rendezvous.port_taken = fmt::format("another process of this host listens at port {}", port);
  }
  if (rendezvous.listener) rendezvous.port = rendezvous.listener->port();
  return rendezvous;
}

// meet_in_step(): the agents of a Slurm step find each other over its PMI.

namespace {

constexpr const char* kKey = "ddprun";
// The child gives up at the deadline; this covers one that hangs inside a library.
constexpr std::chrono::seconds kChildPatience{5};

std::unique_ptr<KeyValueStore> connect_step(const base::Environment& environment, Deadline deadline) {
  if (environment.has("PMIX_NAMESPACE"))
    return std::make_unique<kvs::PmixStore>(std::make_unique<kvs::PmixSession>(environment, deadline));
  return kvs::connect_pmi(kvs::pmi_version(environment), environment, deadline);
}

/// Returns the child's message: '+' and the rendezvous point, or '-' and an error's text.
std::string exchange(const base::Environment& environment, const std::string& own_point, Deadline deadline) {
  std::unique_ptr<KeyValueStore> store;
  try {
    store = connect_step(environment, deadline);
    if (store->rank() == 0) store->put(kKey, std::as_bytes(std::span(own_point)));
    store->fence(deadline);
    std::string point = own_point;
    if (store->rank() != 0) {
      const Bytes value = store->get(0, kKey, deadline);
      point.assign(reinterpret_cast<const char*>(value.data()), value.size());
    }
    store->close();
    return "+" + point;
  } catch (const std::exception& error) {
    if (store) store->close();
    return fmt::format("-{}", error.what());
  }
}

[[noreturn]] void run_child(const std::function<std::string()>& ask, int pipe) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string answer = ask();
  std::string_view rest = answer;
  while (!rest.empty()) {
    const ssize_t size = ::write(pipe, rest.data(), rest.size());
    if (size < 0 && errno != EINTR) break;
    if (size > 0) rest.remove_prefix(static_cast<std::size_t>(size));
  }
  ::_exit(0);
}

std::string read_all(int fd, Deadline deadline) {
  std::string text;
  char buffer[4096];
  while (base::wait_for(fd, POLLIN, deadline)) {
    const ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    text.append(buffer, static_cast<std::size_t>(size));
  }
  return text;
}

/// A process that is PMI's client in place of this one, which will be a server of PMIx. Killed at the end, in case it
/// hangs inside a library.
class PmiChild {
 public:
  PmiChild(const std::string& attempted, Deadline deadline, const std::function<std::string()>& ask)
      : deadline_(deadline) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw base::system_error(attempted, errno);
    answer_.reset(ends[0]);
    const base::UniqueFd child_end{ends[1]};
    const pid_t pid = ::fork();
    if (pid == 0) run_child(ask, child_end.get());
    if (pid < 0) throw base::system_error(attempted, errno, "check the limit of processes (ulimit -u)");
    process_.emplace(pid);
  }

  int answer() const { return answer_.get(); }
  /// All that it says; empty: nothing.
  std::string read() const { return read_all(answer_.get(), Deadline{deadline_.when() + kChildPatience}); }

 private:
  Deadline deadline_;
  base::UniqueFd answer_;
  std::optional<base::ChildProcess> process_;
};

}  // namespace

Rendezvous meet_in_step(const RoleDecision& role, const base::Environment& environment,
                        const std::vector<std::string>& addresses, Deadline deadline) {
  const bool slurm = role.engine.empty();
  const std::string attempted =
      fmt::format("meeting the other agents of {}", slurm ? "this Slurm step" : "this job of " + role.engine);
  Rendezvous rendezvous{.port = 0, .order = role.task, .deadline = deadline};
  RendezvousPoint point{
      .addresses = addresses, .port = 0, .secret = control::Secret::random(), .host = base::host_name()};
  const bool leads = role.task == 0;
  if (leads) {
    rendezvous.listener = std::make_unique<control::Listener>(addresses, 0, control::job_secret_prover(point.secret));
    point.port = rendezvous.listener->port();
  }
  const std::string own_point = point.encode();
  PmiChild child(attempted, deadline, [&] { return exchange(environment, own_point, deadline); });
  if (leads && !base::wait_for(child.answer(), POLLIN, earlier(deadline, Deadline::after(kSilentWait))) &&
      !deadline.expired())
    base::write_stderr_line(fmt::format("ddprun: waiting for the {} other tasks, for {} more{}",
                                        slurm ? "step's" : "job's", duration_text(deadline.remaining()),
                                        slurm ? ": 'squeue --steps' shows whether all have begun" : ""));
  const std::string told = child.read();
  if (told.starts_with('+')) {
    if (!leads) point = RendezvousPoint::decode(told.substr(1));
    rendezvous.addresses = std::move(point.addresses);
    rendezvous.port = point.port;
    rendezvous.host = std::move(point.host);
    rendezvous.provers = control::job_secret_provers(point.secret);
    rendezvous.secret = point.secret;
    return rendezvous;
  }
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = attempted,
               .cause = told.empty() ? (slurm ? "Slurm's" : role.engine + "'s") + std::string(" PMI did not answer")
                                     : told.substr(1),
               .hint = slurm ? "call ddprun without srun: it starts its agents itself"
                             : "start ddprun once, with a host list: ddprun -H"}};
}

std::optional<base::EngineTask> task_of_engine(const base::Environment& environment, Deadline deadline) {
  // what a rank of ddprun submits or starts inherits these variables, and is no task of its own
  if (environment.raw("PMIX_NAMESPACE").value_or("").starts_with("ddp.")) return std::nullopt;
  auto task = base::EngineTask::read(environment);
  if (!task || (task->tasks && task->tasks_here) || !environment.has("PMIX_NAMESPACE")) return task;
  const std::string attempted = fmt::format("asking {}'s PMIx for the job's tasks", task->engine);
  PmiChild child(attempted, deadline, [&]() -> std::string {
    try {
      const kvs::PmixSession session(environment, deadline);
      const kvs::JobFacts& facts = session.facts();
      return fmt::format("+{} {}", facts.world_size, facts.local_size.value_or(0));
    } catch (const std::exception& error) {
      return fmt::format("-{}", error.what());
    }
  });
  const std::string told = child.read();
  int tasks = 0;
  int here = 0;
  if (std::sscanf(told.c_str(), "+%d %d", &tasks, &here) != 2) {
    const std::string cause = told.empty() ? "it did not answer" : told.substr(1);
    if (!task->tasks) {  // only PMIx would make this a task: of a job that is over, by inherited variables
      base::write_stderr_line(fmt::format("ddprun: warning: {}: {}; the job is on this host alone", attempted, cause));
      return std::nullopt;
    }
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = attempted,
                 .cause = cause,
                 .hint = "give --standalone for a job on this host alone"}};
  }
  task->tasks = tasks;
  if (here > 0) task->tasks_here = here;
  return task;
}

}  // namespace ddp::launcher
