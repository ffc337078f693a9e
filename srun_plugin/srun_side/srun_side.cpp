#include "srun_side/srun_side.hpp"

#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/log.hpp"
#include "base/slurm_step.hpp"
#include "store_server/store_key.hpp"

extern "C" {
#include <slurm/slurm.h>
}

// From libslurmfull, which srun has loaded. Absent if another program loads the plugin.
extern "C" __attribute__((weak)) slurm_conf_t slurm_conf;

namespace ddp::srun_plugin {
namespace {

// Time for ddp-step to start on a loaded login node; after that the step starts without it.
constexpr std::chrono::seconds kStoreStartLimit{10};
constexpr std::chrono::seconds kStoreEndLimit{2};
// How much later than others a node may begin: a busy one, or one whose prolog checks GPUs.
constexpr std::uint16_t kNodesPatience = 8;
constexpr std::uint16_t kPrologPatience = 60;

// First line of ddp-step coordinator; 1 is this protocol's version.
constexpr std::string_view kReady = "ddp-step 1 port ";

bool has_plugin(std::string_view folders, std::string_view name) {
  while (!folders.empty()) {
    const auto end = folders.find(':');
    if (::access(fmt::format("{}/mpi_{}.so", folders.substr(0, end), name).c_str(), R_OK) == 0) return true;
    folders = end == std::string_view::npos ? std::string_view{} : folders.substr(end + 1);
  }
  return false;
}

/// "failure 3"; 0 for anything else.
int parse_failure(std::string_view line) {
  constexpr std::string_view kFailure = "failure ";
  int status = 0;
  if (!line.starts_with(kFailure)) return 0;
  const auto [end, error] = std::from_chars(line.data() + kFailure.size(), line.data() + line.size(), status);
  return error == std::errc{} && end == line.data() + line.size() && status > 0 && status < 256 ? status : 0;
}

std::uint16_t parse_ready(const std::string& path, std::string_view line) {
  std::uint16_t port = 0;
  if (line.starts_with(kReady)) {
    const std::string_view number = line.substr(kReady.size());
    const auto [end, status] = std::from_chars(number.data(), number.data() + number.size(), port);
    if (status == std::errc{} && end == number.data() + number.size() && port != 0) return port;
  }
  constexpr std::string_view kError = "error ";
  if (line.starts_with(kError)) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "coordinating the step beside srun",
                 .cause = std::string(line.substr(kError.size()))}};
  }
  throw Error{{.code = ErrorCode::protocol,
               .attempted = fmt::format("starting {}", path),
               .cause = fmt::format("it answered '{}': its version differs", line),
               .hint = "install the plugin and ddp-step from one package"}};
}

/// Throws RefusedCommand if the command cannot work; otherwise recommends a better one.
void check_command(const CommandLine& arguments) {
  if (!arguments.other_files && !process_variable("SLURM_WORKING_DIR")) {
    const std::unique_ptr<char, decltype(&std::free)> folder(::getcwd(nullptr, 0), &std::free);
    const auto advice = advise_on_script(arguments.command, folder != nullptr ? folder.get() : ".",
                                         process_variable("PATH").value_or(""));
    if (advice) throw RefusedCommand(*advice);
  }
  const std::string type = arguments.mpi.empty() ? process_variable("SLURM_MPI_TYPE").value_or("") : arguments.mpi;
  if (type == "pmi2" && arguments.components && !joins_components(arguments, &process_variable)) {
    throw RefusedCommand(
        "PMI-2 does not join the components of a step in an ordinary allocation: their tasks would wait for each "
        "other. Leave out the MPI type (--mpi, SLURM_MPI_TYPE): --ddp joins them at its store");
  }
  const auto advice = advise_on_launcher(arguments.command, &process_variable);
  if (advice && advice->hopeless) throw RefusedCommand(advice->text);
  if (advice) base::write_stderr_line("srun: ddp: warning: " + advice->text);
}

}  // namespace

SlurmFacts SlurmFacts::read() {
  SlurmFacts facts;
  if (&slurm_conf == nullptr) return facts;
  if (slurm_conf.plugindir != nullptr) facts.plugin_dirs = slurm_conf.plugindir;
  if (slurm_conf.mpi_default != nullptr) facts.mpi_default = slurm_conf.mpi_default;
  facts.kill_on_bad_exit = slurm_conf.kill_on_bad_exit != 0;
  // With Alloc (which Contain implies), the prolog has ended on all nodes before a step can start.
  facts.prolog_at_launch = slurm_conf.prolog != nullptr && (slurm_conf.prolog_flags & PROLOG_FLAG_ALLOC) == 0;
  if (slurm_conf.srun_port_range != nullptr)
    facts.port_range = {slurm_conf.srun_port_range[0], slurm_conf.srun_port_range[1]};
  return facts;
}

MpiChoice choose_mpi(const SlurmFacts& facts, bool several_components) {
  if (facts.plugin_dirs.empty()) return MpiChoice::leave;
  if (!several_components) {
    if (facts.mpi_default.starts_with("pmix")) return MpiChoice::leave;
    if (has_plugin(facts.plugin_dirs, "pmix")) return MpiChoice::pmix;
  }
  return has_plugin(facts.plugin_dirs, "pmi2") ? MpiChoice::pmi2 : MpiChoice::nothing_there;
}

bool joins_components(const CommandLine& arguments, Lookup variable) {
  return (!variable("SLURM_JOB_ID") && !arguments.job_id) || variable("SLURM_HET_SIZE").has_value();
}

void SrunSide::before_options(const CommandLine& arguments, const SlurmFacts& facts) {
  arguments_ = arguments;
  // Inherited from a task on a node without the plugin: the ticket of another step.
  ::unsetenv(kTicketVariable);
  std::optional<bool> own;
  try {
    own = own_switch(&process_variable);
  } catch (const Error& error) {
    base::write_stderr_line(fmt::format("srun: ddp: warning: {}; it is ignored", error.what()));
  }
  refused_ = arguments.interactive || (!arguments.ddp && own == false);
  if (refused_) return;
  const bool by_environment = own.value_or(false) || enabled_by_environment(&process_variable);
  if (!arguments.ddp && !by_environment) return;
  base::drop_step_settings();
  // Slurm does not know SLURM_DDP, but takes this variable for --ddp, with the same checks.
  if (by_environment && !process_variable(kUserVariable)) {
    ::setenv(kUserVariable, "", 0);
    stood_in_ = true;
  }
  choose_mpi_type(facts);
  choose_end(facts);
  // Since 22.05, srun ignores --cpus-per-task of its sbatch or salloc, and tasks would get one core.
  const auto cpus = process_variable("SLURM_CPUS_PER_TASK");
  if (cpus && !arguments.cpus_per_task) ::setenv("SRUN_CPUS_PER_TASK", cpus->c_str(), 0);
}

void SrunSide::choose_mpi_type(const SlurmFacts& facts) {
  // libddp's modulefile set it, not the user.
  if (arguments_.components && process_variable("__LIBDDP_SET_SLURM_MPI_TYPE") &&
      process_variable("SLURM_MPI_TYPE") == "pmix") {
    ::unsetenv("SLURM_MPI_TYPE");
  }
  if (!process_variable("SLURM_MPI_TYPE")) {
    MpiChoice choice = choose_mpi(facts, arguments_.components);
    if (choice == MpiChoice::pmi2 && arguments_.components && !joins_components(arguments_, &process_variable))
      choice = MpiChoice::nothing_there;
    switch (choice) {
      case MpiChoice::pmix: ::setenv("SLURM_MPI_TYPE", "pmix", 0); break;
      case MpiChoice::pmi2: ::setenv("SLURM_MPI_TYPE", "pmi2", 0); break;
      case MpiChoice::nothing_there:
        pmi_available_ = false;
        // Overrides the site's default, which would not join the components.
        if (arguments_.components) ::setenv("SLURM_MPI_TYPE", "none", 0);
        break;
      case MpiChoice::leave: break;
    }
  }
}

void SrunSide::choose_end(const SlurmFacts& facts) {
  const auto from_environment = process_variable("SLURM_KILL_BAD_EXIT");
  if (arguments_.kill_on_bad_exit) {
    failure_ends_step_ = *arguments_.kill_on_bad_exit;
  } else if (from_environment) {
    failure_ends_step_ = *from_environment != "0";
  } else if (arguments_.no_kill || process_variable("SLURM_NO_KILL")) {
    failure_ends_step_ = facts.kill_on_bad_exit;
  } else {
    failure_ends_step_ = true;
    ::setenv("SLURM_KILL_BAD_EXIT", "1", 0);
    kill_set_ = true;
  }
}

void SrunSide::after_options(const PluginOptions& options, const SlurmFacts& facts) {
  if (std::exchange(stood_in_, false)) ::unsetenv(kUserVariable);
  // srun inside a task must not inherit it. Skipped while further components are yet to be read.
  if (!arguments_.components && std::exchange(kill_set_, false)) ::unsetenv("SLURM_KILL_BAD_EXIT");
  if (!options.enabled && !arguments_.ddp_detail.empty())
    base::write_stderr_line(fmt::format("srun: ddp: warning: without --ddp, {} has no effect", arguments_.ddp_detail));
  if (!options.enabled || refused_) return;
  check_command(arguments_);
  // --ddp-backend=auto overrides DDP_BACKEND, which tasks must not see then.
  const auto backend = process_variable("DDP_BACKEND");
  if (options.backend == "auto" && backend && !backend->empty()) ::setenv("DDP_BACKEND", "auto", 1);
  if (arguments_.components) start_store(options, facts, {.job = process_variable("SLURM_JOB_ID").value_or("")});
}

void SrunSide::before_launch(const PluginOptions& options, const SlurmFacts& facts, const StepName& name) {
  if (options.enabled && !refused_) exit_status::watch();
  if (options.enabled && !refused_) start_store(options, facts, name);
}

void SrunSide::start_store(const PluginOptions& options, const SlurmFacts& facts, const StepName& name) {
  if (std::exchange(started_, true)) return;
  StepTicket ticket{.options = options,
                    .patience_seconds = facts.prolog_at_launch ? kPrologPatience : kNodesPatience,
                    .pmi_available = pmi_available_,
                    .progress_seconds = options.event_log.empty() ? 0 : options.event_log_interval_s};
  try {
    const std::string secret = store_server::StoreKey::make().text();
    const std::string path = find_ddp_step(ddp_step_);
    std::vector<std::string> arguments{"coordinator", fmt::format("--patience={}", ticket.patience_seconds),
                                       "--program=" + arguments_.program, "--job=" + name.job, "--step=" + name.step};
    if (facts.port_range) {
      arguments.push_back(fmt::format("--port-range={}-{}", facts.port_range->first, facts.port_range->second));
    }
    if (failure_ends_step_) arguments.emplace_back("--failure-ends-step");
    if (!arguments_.components) arguments.emplace_back("--nodes-expected");
    if (options.hang_report_after_s > 0)
      arguments.push_back(fmt::format("--hang-report-after={}", options.hang_report_after_s));
    if (!options.event_log.empty()) {
      arguments.push_back("--event-log=" + options.event_log);
      arguments.push_back(fmt::format("--event-log-interval={}", options.event_log_interval_s));
    }
    const Deadline deadline = Deadline::after(kStoreStartLimit);
    DdpStepClient store(path, arguments, {});
    store.send(base::to_bytes(secret + "\n"), deadline);
    ticket.port = parse_ready(path, store.read_line(deadline));
    ticket.secret = secret;
    store_ = std::move(store);
  } catch (const std::exception& error) {
    base::write_stderr_line(
        fmt::format("srun: ddp: warning: {}; the step starts without a store; MASTER_ADDR and MASTER_PORT are not set",
                    error.what()));
  }
  ::setenv(kTicketVariable, encode(ticket).c_str(), 1);
  const BeforeProgram before{.doctor = options.doctor, .dump = options.dump};
  if (before.wanted()) ::setenv(kBeforeVariable, encode(before).c_str(), 1);
}

void SrunSide::at_end() {
  if (!store_) return;
  const Deadline deadline = Deadline::after(kStoreEndLimit);
  store_->close_input();
  int first_failure = 0;
  try {
    first_failure = parse_failure(store_->read_line(deadline));
  } catch (const std::exception&) {  // the coordinator has ended: no rank has failed
  }
  store_->finish(deadline);
  store_.reset();
  if (failure_ends_step_) exit_status::prefer(first_failure);
}

namespace exit_status {
namespace {

pid_t watched_process = -1;
int preferred = 0;
int exiting_with = -1;  ///< -1: this process is not exiting

void leave_if_known() {
  if (exiting_with <= 0 || preferred == 0 || ::getpid() != watched_process) return;
  std::fflush(nullptr);
  ::_exit(preferred);
}

void at_exit(int status, void*) {
  exiting_with = status;
  leave_if_known();
}

}  // namespace

void watch() {
  if (watched_process == ::getpid()) return;
  // Slurm may unload the plugin before the process exits: at_exit() must stay loaded.
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&watch), &info) == 0 || info.dli_fname == nullptr) return;
  ::dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_NODELETE | RTLD_NOW);
  ::dlerror();
  if (::on_exit(&at_exit, nullptr) == 0) watched_process = ::getpid();
}

void prefer(int status) {
  preferred = status;
  leave_if_known();
}
}  // namespace exit_status

}  // namespace ddp::srun_plugin
