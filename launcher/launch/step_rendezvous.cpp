// meet_in_step(): the agents of a Slurm step find each other over its PMI.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/key_value_store.hpp>

#include "base/child_process.hpp"
#include "base/host_name.hpp"
#include "base/socket.hpp"
#include "base/stderr_line.hpp"
#include "base/system_error.hpp"
#include "kvs/pmi2_store.hpp"
#include "kvs/pmix_store.hpp"
#include "launch/rendezvous.hpp"
#include "launch/wait_notice.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kKey = "ddprun";
// The child gives up at the deadline by itself; this is for one that hangs inside a library.
constexpr std::chrono::seconds kChildPatience{5};

std::unique_ptr<KeyValueStore> connect_step(const base::Environment& environment, Deadline deadline) {
  if (environment.has("PMIX_NAMESPACE"))
    return std::make_unique<kvs::PmixStore>(std::make_unique<kvs::PmixSession>(environment, deadline));
  return std::make_unique<kvs::Pmi2Store>(environment.number("PMI_FD").value(), deadline);
}

/// What the child tells: '+' and the rendezvous point, or '-' and an error's text.
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

[[noreturn]] void run_child(const base::Environment& environment, const std::string& own_point, int pipe,
                            Deadline deadline) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string answer = exchange(environment, own_point, deadline);
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

}  // namespace

Rendezvous meet_in_step(const base::Environment& environment, const std::vector<std::string>& addresses,
                        Deadline deadline) {
  const std::string attempted = "meeting the other agents of this Slurm step";
  Rendezvous rendezvous{.port = 0, .order = environment.number("SLURM_PROCID").value_or(-1), .deadline = deadline};
  RendezvousPoint point{
      .addresses = addresses, .port = 0, .secret = control::Secret::random(), .host = base::host_name()};
  const bool leads = environment.number("SLURM_PROCID").value_or(-1) == 0;
  if (leads) {
    rendezvous.listener = std::make_unique<control::Listener>(addresses, 0, control::job_secret_prover(point.secret));
    point.port = rendezvous.listener->port();
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw base::system_error(attempted, errno);
  const base::UniqueFd answer{ends[0]};
  base::UniqueFd child_end{ends[1]};
  const std::string own_point = point.encode();
  const pid_t pid = ::fork();
  if (pid == 0) run_child(environment, own_point, child_end.get(), deadline);
  if (pid < 0) throw base::system_error(attempted, errno, "check the limit of processes (ulimit -u)");
  const base::ChildProcess child{pid};  // killed in the end, in case it hangs inside a library
  child_end.reset();
  if (leads && !base::wait_for(answer.get(), POLLIN, earlier(deadline, Deadline::after(kSilentWait))) &&
      !deadline.expired())
    base::write_stderr_line(
        fmt::format("ddprun: waiting for the step's other tasks, for {} more: 'squeue --steps' shows "
                    "whether all have begun",
                    duration_text(deadline.remaining())));
  const std::string told = read_all(answer.get(), Deadline{deadline.when() + kChildPatience});
  if (told.starts_with('+')) {
    if (!leads) point = RendezvousPoint::decode(told.substr(1));
    rendezvous.addresses = std::move(point.addresses);
    rendezvous.port = point.port;
    rendezvous.host = std::move(point.host);
    rendezvous.provers = control::job_secret_provers(point.secret);
    return rendezvous;
  }
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = attempted,
               .cause = told.empty() ? "Slurm's PMI did not answer" : told.substr(1),
               .hint = "call ddprun without srun: it starts its agents itself"}};
}

}  // namespace ddp::launcher
