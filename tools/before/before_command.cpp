#include "before/before_command.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/host_name.hpp"
#include "base/log.hpp"
#include "cli/exit_error.hpp"
#include "command/job_surroundings.hpp"
#include "diagnostics/environment/environment_dump.hpp"
#include "diagnostics/environment/rank_environment.hpp"
#include "doctor/examination.hpp"
#include "doctor/report.hpp"
#include "world/job_connection.hpp"

namespace ddp::tools::before {
namespace {

using Clock = Deadline::Clock;

// The program uses the same store afterwards.
constexpr std::string_view kStoreName = "ddp-before";
constexpr std::string_view kEnvironmentKey = "environment";
constexpr std::string_view kVerdictKey = "verdict";
// A node that does not take part must not hold up the others for long.
constexpr std::chrono::milliseconds kLongest{60'000};

struct Wanted {
  std::string dump;     ///< file, or "stderr"; empty: none
  bool doctor = false;  ///< examine, and start only without errors
  std::string program;  ///< name of the one that starts
  std::span<const std::string> command;
};

Wanted parse(std::span<const std::string> arguments) {
  Wanted wanted;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const bool value = i + 1 < arguments.size();
    if (word == "--") {
      wanted.command = arguments.subspan(i + 1);
      if (wanted.command.size() < 2) break;
      if (wanted.program.empty()) wanted.program = wanted.command.front();
      return wanted;
    }
    if (word == "--doctor") {
      wanted.doctor = true;
    } else if (word == "--dump" && value) {
      wanted.dump = arguments[++i];
    } else if (word == "--program" && value) {
      wanted.program = arguments[++i];
    } else {
      wanted.command = {};
      break;
    }
    if (i + 1 == arguments.size()) return wanted;
  }
  throw cli::UsageError{cli::kReadingCommandLine, "'ddp-info before' is run by launchers, with other words",
                        "install ddprun, the plugin for srun and ddp-info from one package"};
}

void dump(KeyValueStore& store, const Wanted& wanted, const base::Environment& environment, Deadline deadline) {
  using diagnostics::EnvironmentSource;
  const auto source = EnvironmentSource::process({}, surroundings_of_program(environment, wanted.program));
  diagnostics::put_environment(store, kEnvironmentKey, describe(source, store.rank(), base::host_name(), false));
  store.fence(deadline);
  if (store.rank() != 0) return;
  diagnostics::write_report(diagnostics::collect_environments(store, kEnvironmentKey, deadline), wanted.dump);
}

/// Says what was found. @return whether there is an error
bool report(const doctor::JobFacts& job, Clock::time_point began) {
  doctor::Examination done{.job = &job, .rules = 0};
  done.findings = doctor::examine(job, [&](const doctor::Rule&) { return ++done.rules > 0; });
  done.time = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
  // Errors come first. Remarks alone are no reason to speak.
  const auto worst = done.findings.empty() ? doctor::Severity::info : done.findings.front().rule->severity;
  if (worst == doctor::Severity::info) return false;
  std::string text = "ddp-info doctor: " + format_text(done);
  text.pop_back();  // its newline
  base::write_stderr_line(text);
  return worst == doctor::Severity::error;
}

/// @return whether there is an error; said by rank 0, known to all.
bool examine(const world::JobConnection& connection, const base::Environment& environment, const std::string& program,
             Deadline deadline) {
  const auto began = Clock::now();
  KeyValueStore& store = *connection.store;
  const auto settle = [&](bool error) {
    if (store.rank() == 0) store.put(kVerdictKey, Bytes{std::byte{static_cast<unsigned char>(error)}});
    store.fence(deadline);
  };
  std::optional<doctor::JobFacts> job;
  try {
    job = doctor::examine_job(connection, environment, deadline, program);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) settle(false);  // of rank 0 alone: the others wait for its verdict
    throw;
  }
  settle(job && report(*job, began));
  return store.get(0, kVerdictKey, deadline) == Bytes{std::byte{1}};
}

[[noreturn]] void become(std::span<const std::string> command) {
  std::signal(SIGPIPE, SIG_DFL);  // as this program has found it
  std::vector<char*> pointers;
  for (const std::string& word : command.subspan(1)) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  ::execv(command.front().c_str(), pointers.data());
  throw base::system_error(fmt::format("executing '{}'", command.front()), errno);
}

/// What fails is said once on each node, and the program starts.
template <class Function>
void tried(const base::Environment& environment, std::string_view lacking, Function function) {
  try {
    function();
  } catch (const std::exception& error) {
    if (environment.raw("LOCAL_RANK").value_or("0") != "0") return;
    base::write_stderr_line(fmt::format("ddp-info: warning: {}; the program starts without {}", error.what(), lacking));
  }
}

}  // namespace

int run_before(std::span<const std::string> arguments) {
  const Wanted wanted = parse(arguments);
  const auto environment = base::Environment::process();
  bool must_not_start = false;
  tried(environment, wanted.doctor ? "an examination" : "a dump of the environments", [&] {
    const Deadline deadline = Deadline::after(std::min(environment.seconds("DDP_INIT_TIMEOUT"), kLongest));
    const auto connection = world::connect_job(environment, LaunchSource::torchrun, deadline, kStoreName);
    const StoreCloser closer{*connection.store};
    if (!wanted.dump.empty()) {
      tried(environment, "a dump of the environments", [&] { dump(*connection.store, wanted, environment, deadline); });
    }
    if (wanted.doctor) must_not_start = examine(connection, environment, wanted.program, deadline);
  });
  if (must_not_start) return kMustNotStart;
  if (!wanted.command.empty()) become(wanted.command);
  return 0;
}

}  // namespace ddp::tools::before
