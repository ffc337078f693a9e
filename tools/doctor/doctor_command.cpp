#include "doctor/doctor_command.hpp"

#include <chrono>

#include "command/launched.hpp"
#include "command/output.hpp"
#include "command/store_closer.hpp"
#include "doctor/allocation.hpp"
#include "doctor/examination.hpp"
#include "doctor/report.hpp"
#include "world/job_connection.hpp"

namespace ddp::tools::doctor {
namespace {

using Clock = Deadline::Clock;

int print(const DoctorOptions& options, const JobFacts& job, Clock::time_point began) {
  Examination done{.job = &job, .rules = 0};
  done.findings = examine(job, [&](const Rule& rule) {
    if (!options.wants(rule)) return false;
    ++done.rules;
    return true;
  });
  done.time = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
  write_standard_output(options.json ? format_json(done) : format_text(done));
  if (!options.fail_on || done.findings.empty()) return 0;
  const Severity worst = done.findings.front().rule->severity;  // errors come first
  if (worst < *options.fail_on) return 0;
  return worst == Severity::error ? 2 : 1;
}

}  // namespace

int run_doctor(const DoctorOptions& options, std::span<const std::string> arguments) {
  if (options.help) return write_standard_output(kDoctorHelp), 0;
  if (options.rules) return write_standard_output(format_rules()), 0;
  if (options.explain != nullptr) return write_standard_output(explain(*options.explain)), 0;

  const auto began = Clock::now();
  const auto environment = base::Environment::process();
  const bool in_job = !options.no_job && is_launched(environment);
  if (!options.no_job && !in_job) {
    if (const int nodes = allocated_nodes(environment); nodes > 1) {
      return examine_allocation(nodes, arguments, environment.seconds("DDP_INIT_TIMEOUT"));
    }
  }
  const Deadline deadline = Deadline::after(environment.seconds("DDP_INIT_TIMEOUT"));
  const auto forced = in_job ? std::nullopt : std::optional{LaunchSource::single};
  const world::JobConnection connection = world::connect_job(environment, forced, deadline);
  const StoreCloser closer{*connection.store};
  const auto job = examine_job(connection, environment, deadline);
  if (!job) return options.under_srun ? kFirstStatusUnderSrun : 0;
  return (options.under_srun ? kFirstStatusUnderSrun : 0) + print(options, *job, began);
}

}  // namespace ddp::tools::doctor
