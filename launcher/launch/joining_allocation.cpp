#include "launch/joining_allocation.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/host_name.hpp"
#include "base/log.hpp"
#include "base/slurm_step.hpp"
#include "control/handshake.hpp"
#include "events/heartbeat.hpp"
#include "events/signal_inbox.hpp"
#include "launch/agent_settings.hpp"
#include "launch/job_file.hpp"
#include "launch/launch_role.hpp"
#include "launch/launcher_process.hpp"
#include "launch/node_order.hpp"
#include "launch/rendezvous.hpp"
#include "launch/slurm_frontend.hpp"
#include "launch/waiting_hint.hpp"
#include "outcome/exit_error.hpp"
#include "slurm/slurmstepd.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {
namespace {

// A job that runs answers at once: its coordinator listens until its end.
constexpr std::chrono::seconds kAnswerLimit{15};
constexpr std::chrono::milliseconds kFilePause{200};
constexpr std::chrono::seconds kTellWaitAfter{3};
// For srun to notice that its tasks have ended.
constexpr std::chrono::seconds kSrunPatience{15};
constexpr std::chrono::seconds kSrunEnd{10};

// Slurm sets them for the tasks of each allocation: those of the first one's batch script would be wrong here.
constexpr std::array<std::string_view, 5> kDeviceVariables{
    "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"};

void say_as_guest(const std::string& text) { base::write_stderr_line(fmt::format("ddprun: {}", text)); }

[[noreturn]] void refuse_to_join(const LaunchOptions& options, std::string cause, std::string hint) {
  throw ExitError{kExitUsage,
                  {.code = ErrorCode::invalid_argument,
                   .attempted = fmt::format("joining Slurm job {}", options.join),
                   .cause = std::move(cause),
                   .hint = std::move(hint)}};
}

/// Refuses to run where it could not start agents.
void check_place(const LaunchOptions& options, const base::Environment& environment) {
  const std::string own = environment.raw("SLURM_JOB_ID").value_or("");
  if (own.empty())
    refuse_to_join(options, "this is not a Slurm allocation, whose nodes could join",
                   fmt::format("sbatch --nodes=N --wrap 'ddprun --join {}'", options.join));
  if (own == options.join) refuse_to_join(options, "this is that job itself", "give another job's id");
  if (base::SlurmStep::read(environment).is_task())
    refuse_to_join(options, "this is a task of a Slurm step",
                   "call ddprun --join without srun: it starts its agents itself");
}

/// Waits for a job that has not begun.
AgentSettings find_job(const LaunchOptions& options, const base::Environment& environment) {
  const std::string path = job_file_path(environment, options.join);
  const auto begin = Deadline::Clock::now();
  const Deadline deadline{begin + options.rendezvous.read_timeout};
  for (bool told = false;; std::this_thread::sleep_for(kFilePause)) {
    if (auto settings = read_job_file(path)) return *std::move(settings);
    const auto now = Deadline::Clock::now();
    if (deadline.expired())
      throw Error{{.code = ErrorCode::not_found,
                   .attempted = fmt::format("joining Slurm job {}", options.join),
                   .cause = fmt::format("it has no ddprun that nodes can join: there is no file '{}'", path),
                   .hint = "start its ddprun with --nnodes MIN:MAX or --spares, without srun, and wait for its ranks"}};
    if (!told && now - begin >= kTellWaitAfter) {
      say_as_guest(fmt::format("waiting for the ranks of Slurm job {}, for {} more (there is no file '{}')",
                               options.join, duration_text(deadline.remaining()), path));
      told = true;
    }
  }
}

control::Connection reach(const LaunchOptions& options, const base::Environment& environment,
                          const RendezvousPoint& point) {
  try {
    return control::connect(point.addresses, point.port, point.secret, Deadline::after(kAnswerLimit),
                            std::chrono::seconds(3));
  } catch (const Error& error) {
    throw Error{{.code = error.code(),
                 .attempted = fmt::format("joining Slurm job {}", options.join),
                 .cause = fmt::format("its ddprun on {} does not answer: {}", point.host, error.cause()),
                 .native = error.native(),
                 .hint = fmt::format("if that job is over, remove '{}'", job_file_path(environment, options.join))}};
  }
}

/// The job's environment with this allocation's own variables of Slurm.
base::Environment agents_environment(const AgentSettings& settings, const base::Environment& environment) {
  EnvironmentMap wanted = environment_of_agent(settings, environment.variables());
  for (const std::string_view name : kDeviceVariables) {
    if (const auto found = wanted.find(name); found != wanted.end()) wanted.erase(found);
  }
  for (const auto& [name, value] : environment.variables()) {
    const bool devices = std::find(kDeviceVariables.begin(), kDeviceVariables.end(), name) != kDeviceVariables.end();
    if (devices || is_slurms(name)) wanted.insert_or_assign(name, value);
  }
  return base::Environment{std::move(wanted)};
}

/// From the job's answer to the end of this allocation's agents.
class Guest {
 public:
  Guest(const LaunchOptions& options, const base::Environment& environment, AgentSettings settings,
        const RendezvousPoint& point)
      : options_(options),
        environment_(agents_environment(settings, environment)),
        settings_(std::move(settings)),
        point_(point),
        signals_({SIGTERM, SIGINT, SIGHUP, SIGQUIT}),
        link_(
            loop_, reach(options, environment, point), [this](const control::Message& message) { handle(message); },
            [this](const std::string& why) { lost(why); }),
        heartbeat_(loop_, PeerLimits{}.beat, [this] { link_.beat(); }) {
    loop_.watch(signals_.fd(), [this] { take_signals(); });
    link_.send(control::AllocationHello{
        .allocation = environment_.raw("SLURM_JOB_ID").value_or(""), .host = base::host_name(), .pid = ::getpid()});
  }
  Guest& operator=(Guest&&) = delete;

  int run() {
    while (!ended_) {
      loop_.run_once(limit_.value_or(Deadline::after(std::chrono::hours(24))));
      if (limit_ && limit_->expired()) give_up();
    }
    return status_;
  }

 private:
  void handle(const control::Message& message) {
    if (std::get_if<control::JoinTaken>(&message) != nullptr) {
      if (srun_) return;
      limit_.reset();
      start();
    } else if (const auto* end = std::get_if<control::Finish>(&message)) {
      if (!end->message.empty())
        say_as_guest(fmt::format("Slurm job {} refuses these nodes: {}", options_.join, end->message));
      status_ = end->exit_status;
      srun_ ? void(limit_ = Deadline::after(kSrunPatience)) : void(ended_ = true);
    }
  }
  void lost(const std::string& why) {
    if (srun_ && limit_) return;  // it has said that the job is over
    say_as_guest(fmt::format("the connection to the ddprun of Slurm job {} was lost: {}", options_.join, why));
    status_ = 1;
    // Agents that lose it end their ranks.
    srun_ ? void(limit_ = Deadline::after(kSrunPatience + options_.shutdown_timeout)) : void(ended_ = true);
  }

  void start() {
    enter_folder(settings_);
    const base::UniqueFd none{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    if (!none) throw base::system_error("opening /dev/null", errno);
    const NodeOrder order = order_of_nodes(environment_);
    srun_ = std::make_unique<SrunProcess>(
        agent_step_command(allocated_nodes(environment_), own_path(), settings_.arguments, "none", order.nodes),
        agent_step_environment(environment_, point_), none.get());
    loop_.watch(srun_->pidfd(), [this] {
      loop_.forget(srun_->pidfd());
      status_ = srun_->exit_status().value_or(1);
      ended_ = true;
    });
  }
  void give_up() {
    if (srun_)
      srun_->end(Deadline::after(kSrunEnd));
    else
      say_as_guest(fmt::format("the ddprun of Slurm job {} does not answer", options_.join));
    ended_ = true;
  }

  void take_signals() {
    for (const auto& [signal, sender] : signals_.take()) {
      if (signal == SIGCHLD) continue;
      if (!srun_) {
        status_ = 128 + signal;
        ended_ = true;
      }
      if (std::exchange(last_signal_, signal) == SIGINT && signal == SIGINT) give_up();
      link_.send(control::SignalReceived{.signal = signal, .by_slurm = is_slurmstepd(sender)});
    }
  }

  const LaunchOptions& options_;
  base::Environment environment_;
  AgentSettings settings_;
  const RendezvousPoint& point_;
  stream::EventLoop loop_;
  SignalInbox signals_;
  LoopConnection link_;
  Heartbeat heartbeat_;
  std::unique_ptr<SrunProcess> srun_;
  std::optional<Deadline> limit_ = Deadline::after(kAnswerLimit);  ///< for the job's answer, then for srun's end
  int last_signal_ = 0;
  int status_ = 1;
  bool ended_ = false;
};

}  // namespace

int join_job(const LaunchOptions& options, const base::Environment& environment) {
  check_place(options, environment);
  AgentSettings settings = find_job(options, environment);
  const RendezvousPoint point = RendezvousPoint::decode(settings.point);
  return Guest{options, environment, std::move(settings), point}.run();
}

}  // namespace ddp::launcher
