#include "launch/waiting_hint.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "launch/own_network.hpp"
#include "options/worker_command.hpp"
#include "outcome/exit_error.hpp"

namespace ddp::launcher {
namespace {

bool has_program(const char* name, const base::Environment& environment) {
  try {
    find_program(name, environment.raw("PATH").value_or("/bin:/usr/bin"));
    return true;
  } catch (const ExitError&) {
    return false;
  }
}

}  // namespace

std::string own_endpoint_remark(const std::string& endpoint) {
  if (!means_localhost(endpoint)) return {};
  return fmt::format(
      "{} is each host's own: only ddpruns of this host reach it; give a name or an address of the first "
      "node's host",
      endpoint);
}

std::string waiting_hint(const LaunchOptions& options, const RoleDecision& role, const base::Environment& environment) {
  if (role.role == LaunchRole::step_agent)
    return role.engine.empty() ? "srun starts a ddprun on each node of the step: 'squeue --steps' shows it"
                               : fmt::format("{} starts a ddprun on each node", role.engine);
  if (role.role == LaunchRole::frontend)
    return role.by_hosts ? "" : "srun starts a ddprun on each node: 'squeue --steps' shows whether its step has begun";
  if (role.role != LaunchRole::endpoint) return {};
  const RendezvousOptions& rendezvous = options.rendezvous;
  const bool named = !rendezvous.endpoint_host.empty() || rendezvous.master_addr_given;
  if (!named && !rendezvous.node_rank) {
    // What --nnodes alone means: this host leads, at an address that is its own.
    return has_program("salloc", environment)
               ? fmt::format("this is not a Slurm allocation: did you mean 'salloc --nodes={} ddprun ...'?",
                             role.agents())
               : "start ddprun on each of them with its --node-rank and this host as --master-addr, or give a host "
                 "list "
                 "(-H)";
  }
  const std::string host = rendezvous.endpoint_host.empty() ? rendezvous.master_addr : rendezvous.endpoint_host;
  return own_endpoint_remark(host);
}

std::string stale_job_hint(const base::Environment& environment) {
  const std::string job = environment.raw("SLURM_JOB_ID").value_or("");
  return fmt::format(
      "if Slurm job {} has ended, SLURM_JOB_ID and the like are left over in this shell: unset them ('unset "
      "${{!SLURM_@}}'), "
      "or give --standalone to run on this host alone",
      job);
}

WaitNotice::WaitNotice(Text text, std::chrono::milliseconds silence, Say say)
    : thread_(base::start_thread([this, text = std::move(text), silence, say = std::move(say)] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, silence, [this] { return over_; })) return;
        lock.unlock();
        const std::string line = fmt::format("ddprun: {}", text());
        say ? say(line) : void(base::write_stderr_line(line));
      })) {}

WaitNotice::~WaitNotice() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::string duration_text(std::chrono::milliseconds duration) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(duration).count();
  if (seconds < 120) return fmt::format("{} s", seconds);
  const auto rest = seconds % 60;
  return rest == 0 ? fmt::format("{} min", seconds / 60) : fmt::format("{} min {} s", seconds / 60, rest);
}

}  // namespace ddp::launcher
