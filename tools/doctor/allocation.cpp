#include "doctor/allocation.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/process.hpp"
#include "base/slurm_step.hpp"

namespace ddp::tools::doctor {
namespace {

// Where steps do not share the nodes (--overlap of all of them), srun would wait for the others' end.
constexpr std::chrono::seconds kStartTime{30};
constexpr std::chrono::seconds kEndTime{20};
constexpr int kCannotExecute = 127;
constexpr const char* kAttempted = "examining all nodes of the allocation with srun";
constexpr const char* kHint = "'ddp-info doctor --no-job' examines this node alone";

[[noreturn]] void fail(std::string cause) {
  throw Error{{.code = ErrorCode::unavailable, .attempted = kAttempted, .cause = std::move(cause), .hint = kHint}};
}

base::ChildProcess start(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw base::system_error(kAttempted, errno);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // a health check that is ended must not leave a step
    ::signal(SIGPIPE, SIG_DFL);
    ::execvp(pointers.front(), pointers.data());
    ::_exit(kCannotExecute);
  }
  return base::ChildProcess{child};
}

}  // namespace

int allocated_nodes(const base::Environment& environment) {
  if (!environment.has("SLURM_JOB_ID")) return 1;
  if (base::SlurmStep::read(environment).kind == base::SlurmStep::Kind::user) return 1;
  return environment.number("SLURM_JOB_NUM_NODES").value_or(1);
}

int examine_allocation(int nodes, std::span<const std::string> arguments, std::chrono::milliseconds limit) {
  std::vector<std::string> words{"srun",
                                 "--mpi=pmix",
                                 "--overlap",
                                 "--cpu-bind=quiet,none",
                                 "--kill-on-bad-exit=0",
                                 fmt::format("--immediate={}", kStartTime.count()),
                                 fmt::format("--nodes={}", nodes),
                                 fmt::format("--ntasks={}", nodes),
                                 "--ntasks-per-node=1",
                                 std::filesystem::read_symlink("/proc/self/exe").string(),
                                 "doctor",
                                 "--under-srun"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  base::ChildProcess srun = start(std::move(words));
  if (!srun.wait(Deadline::after(kStartTime + limit + kEndTime))) {
    srun.terminate(Deadline::after(std::chrono::seconds{5}));
    fail("srun did not end in time");
  }
  const base::ProcessEnd end = srun.end().value_or(base::ProcessEnd{});
  const int status = end.code - kFirstStatusUnderSrun;
  if (!end.by_signal && status >= 0 && status <= 2) return status;
  if (!end.by_signal && end.code == kCannotExecute) fail("srun cannot be run");
  fail(end.by_signal ? fmt::format("srun was ended by signal {}", end.code)
                     : fmt::format("srun ended with status {}", end.code));
}

}  // namespace ddp::tools::doctor
