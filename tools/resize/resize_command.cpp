#include "resize/resize_command.hpp"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "cli/exit_error.hpp"
#include "cli/option_values.hpp"
#include "command/job_nodes.hpp"
#include "command/output.hpp"
#include "launch/job_file.hpp"
#include "launch/resize_request.hpp"

namespace ddp::tools::resize {
namespace {

// A job that runs answers at once.
constexpr std::chrono::seconds kLimit{8};
constexpr int kMostNodes = 1'000'000;
constexpr const char* kRemedy = "start its ddprun with --nnodes=MIN:MAX or --spares";

[[noreturn]] void give_up(const std::string& job, ErrorCode code, std::string cause, std::string hint) {
  throw Error{{.code = code,
               .attempted = fmt::format("finding job {}", job),
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

std::string name_of_user(uid_t user) {
  const passwd* const entry = ::getpwuid(user);
  return entry == nullptr ? fmt::format("user {}", user) : entry->pw_name;
}

/// Why there is no file of @p job.
[[noreturn]] void explain_absence(const std::string& job, const std::string& folder, Deadline deadline) {
  const bool number = !job.empty() && job.find_first_not_of("0123456789") == std::string::npos;
  struct stat process {};
  if (number && ::stat(fmt::format("/proc/{}", job).c_str(), &process) == 0) {
    if (process.st_uid != ::geteuid())
      give_up(job, ErrorCode::unavailable, fmt::format("process {} belongs to {}", job, name_of_user(process.st_uid)),
              "users resize their own jobs only");
    give_up(job, ErrorCode::not_found,
            fmt::format("process {} leads no running job whose nodes may change (no file in '{}')", job, folder),
            kRemedy);
  }
  if (number && has_slurm()) require_running_job(job, deadline);
  give_up(job, ErrorCode::not_found,
          fmt::format("this user has no such running job whose nodes may change (no file in '{}')", folder), kRemedy);
}

std::string job_file_of(const std::string& job, const base::Environment& environment, Deadline deadline) {
  const std::vector<std::string> files = launcher::find_job_files(environment, job);
  if (files.empty()) explain_absence(job, launcher::job_folder(environment), deadline);
  if (files.size() > 1)
    give_up(job, ErrorCode::conflict, fmt::format("there are several: {}", fmt::join(files, ", ")),
            "give the name of its file");
  return files.front();
}

}  // namespace

cli::OptionTable resize_table(ResizeOptions& options) {
  cli::OptionTable table{
      {.name = "ddp-info resize",
       .usage = {"JOB [--nodes K] [--spares N]", "JOB --drain HOST"},
       .description =
           {"Lets a running ddprun job of this user continue on fewer or more nodes, within its --nnodes MIN:MAX. Its "
            "ranks end as for any change of nodes (ddprun --on-resize) and start again; no restart is spent. Surplus "
            "nodes wait as spares, those of the highest ranks first, and are the first to take part again. Those "
            "beyond "
            "--spares leave, and Slurm gets them back.",
            "JOB is Slurm's job, the process id of the ddprun that leads, or the name of the job's file. Prints what "
            "follows, and does not wait for it."},
       .examples = {{"ddp-info resize 17 --nodes 2", "Slurm job 17 continues on two nodes"},
                    {"ddp-info resize 17 --nodes 2 --spares 0", "and Slurm gets its other nodes back"},
                    {"ddp-info resize 17 --drain n3", "without n3, whose ddprun exits"}},
       .exit_statuses = {{"0", "success"},
                         {"1", "no such job of this user, or it refuses"},
                         {"2", "wrong command line"}},
       .see_also = {}}};
  table.add_help();
  table.add_value("--drain", "HOST", "The nodes of this host leave the job for good. Slurm gets them back.",
                  [&](const auto&, const auto& text) { options.drain = text; });
  table.add_value(
      "--nodes", "K", "How many nodes take part, from MIN to MAX.",
      [&](const auto& option, const auto& text) { options.nodes = cli::parse_count(option, text, kMostNodes); });
  table.add_value(
      "--spares", "N", "How many nodes wait besides, from now on; more leave the job.",
      [&](const auto& option, const auto& text) { options.spares = cli::parse_whole(option, text, 0, kMostNodes); });
  return table;
}

ResizeOptions parse_resize_options(std::span<const std::string> arguments) {
  ResizeOptions options;
  cli::OptionTable table = resize_table(options);
  for (const std::string& word : table.read(arguments)) {
    if (!options.job.empty()) cli::reject_words(fmt::format("'{}' is one too many", word), "name one job");
    options.job = word;
  }
  if (table.given("--help")) {
    options.help = table.help();
    return options;
  }
  if (options.job.empty() || options.job.find('/') != std::string::npos)
    cli::reject_words("no job is named", "give Slurm's job or the process id of its ddprun");
  if ((options.nodes > 0 || options.spares >= 0) == !options.drain.empty())
    cli::reject_words("what to do is not clear", "give --nodes K, --spares N or both, or --drain HOST");
  return options;
}

void run_resize(const ResizeOptions& options) {
  if (!options.help.empty()) return write_standard_output(options.help);
  const auto environment = base::Environment::process();
  const Deadline deadline = Deadline::after(kLimit);
  const launcher::ResizeRequest request{.job_file = job_file_of(options.job, environment, deadline),
                                        .nodes = options.nodes,
                                        .spares = options.spares,
                                        .drain = options.drain};
  write_standard_output(launcher::ask_for_resize(request, environment, deadline) + "\n");
}

}  // namespace ddp::tools::resize
