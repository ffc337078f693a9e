// Interpreters that wait for their rank: what a program finds in one is what it finds in a new one.
#include "workers/warm_workers.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/socket.hpp"
#include "options/worker_command.hpp"
#include "outcome/exit_error.hpp"
#include "pmix_server/scratch_directory.hpp"
#include "support/left_children.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Deadline warm_patience() { return Deadline::after(std::chrono::seconds(120)); }

/// All that a program can ask, but for what differs between any two processes.
constexpr const char* kInquiry = R"(
import os, re, resource, signal, sys
if __name__ == "__main__":
    say = lambda *words: print(*words, file=sys.stderr)
    say(sys.argv, sys.orig_argv if hasattr(sys, "orig_argv") else "", sys.path, sys.flags, sys.warnoptions, os.getcwd())
    say(sorted((name, type(value).__name__ if name in ("__loader__", "__builtins__") else re.sub("0x[0-9a-f]+", "", str(value)))
               for name, value in globals().items() if name.startswith("__")))
    say([(number, signal.getsignal(number)) for number in range(1, 32)], signal.pthread_sigmask(signal.SIG_BLOCK, []))
    say(os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0), os.getpriority(os.PRIO_PROCESS, 0))
    say(os.getpid() == os.getsid(0) == os.getpgid(0), sorted(os.environ.items()))
    for stream in sys.stdin, sys.stdout, sys.stderr:
        say(stream, type(stream.buffer), stream.seekable(), stream.line_buffering, stream.write_through, stream.errors,
            stream.newlines)
    say(sys.stdin is sys.__stdin__, sys.stdin.read())
    print("text", sys.modules["__main__"].__name__)
)";

struct Ran {
  std::string out{}, err{};
  int status = -1;
};

struct WarmWorkersTest : ::testing::Test {
  ~WarmWorkersTest() override { EXPECT_EQ(ddp::test::left_children(), ""); }

  std::string script(const std::string& name, const std::string& text) const {
    std::ofstream{folder_.path() + "/" + name} << text;
    return folder_.path() + "/" + name;
  }

  /// For an interpreter with these words, as a cold rank has them.
  WarmRank rank(std::vector<std::string> words) const {
    words.insert(words.begin(), python_);
    WorkerCommand command{.path = python_, .arguments = words, .display = "", .python = true};
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return {.request = {.rank = 0,
                        .path = python_,
                        .arguments = std::move(words),
                        .environment = {},
                        .descriptor_limit = limit,
                        .ignore_hangup = false},
            .variables = {{"PATH", "/usr/bin:/bin"}, {"MINE", "a b\xff"}},
            .position = program_position(command).value()};
  }

  std::unique_ptr<WarmWorkers> workers(std::vector<WarmRank> ranks, const std::string& modules = "json") {
    ready_.clear();
    failures_.clear();
    return std::make_unique<WarmWorkers>(
        modules, std::move(ranks),
        WarmWorkers::Events{.ready = [this](std::size_t local, pid_t pid) { ready_.emplace_back(local, pid); },
                            .not_imported = [this](const std::string& failure) { failures_.push_back(failure); }});
  }
  /// Until all have imported their modules.
  void make_ready(WarmWorkers& warm) {
    warm.advance();
    const Deadline limit = warm_patience();
    while (warm.fd() >= 0) {
      ASSERT_TRUE(base::wait_for(warm.fd(), POLLIN, limit));
      warm.advance();
    }
  }

  EnvironmentMap environment() const {
    EnvironmentMap all = rank({"x.py"}).variables;
    all["RANK"] = "3";
    all["PMIX_RANK"] = "3";
    all["DDP_GENERATION"] = "1";
    return all;
  }

  /// As the rank runs: in the interpreter of @p warm, or nullptr: in a new one. Its input is "typed".
  Ran run(WarmRank like, WarmWorkers* warm, const EnvironmentMap& environment) {
    SpawnRequest request = std::move(like.request);
    request.environment = environment_lines(environment);
    const std::string in = script("in", "typed");
    const std::string out = folder_.path() + "/out";
    const std::string err = folder_.path() + "/err";
    const base::UniqueFd input{::open(in.c_str(), O_RDONLY | O_CLOEXEC)};
    const base::UniqueFd output{::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
    const base::UniqueFd error{::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600)};
    request.standard_input = input.get();
    request.standard_output = output.get();
    request.standard_error = error.get();
    std::optional<StartingWorker> starting;
    if (warm != nullptr) {
      starting = warm->take(0, request, environment);
      if (!starting) return {.err = "it was not taken"};
    } else {
      starting.emplace(start_worker(request));
    }
    base::ChildProcess process{starting->confirm(warm_patience()).pid};
    pid_ = process.pid();
    EXPECT_TRUE(process.wait(warm_patience()));
    return {.out = text_of(out), .err = text_of(err), .status = process.end() ? process.end()->shell_status() : -1};
  }

  /// The same words in both ways.
  void compare(const std::vector<std::string>& words, int status) {
    auto warm = workers({rank(words)});
    make_ready(*warm);
    ASSERT_EQ(ready_.size(), 1U);
    const Ran in_warm = run(rank(words), warm.get(), environment());
    EXPECT_EQ(pid_, ready_.front().second);
    const Ran in_cold = run(rank(words), nullptr, environment());
    EXPECT_EQ(in_warm.out, in_cold.out);
    EXPECT_EQ(in_warm.err, in_cold.err);
    EXPECT_EQ(in_warm.status, in_cold.status);
    EXPECT_EQ(in_cold.status, status) << in_cold.err;
    EXPECT_NE(in_cold.out + in_cold.err, "");
  }

  static std::string text_of(const std::string& path) {
    std::ifstream file{path};
    return {std::istreambuf_iterator<char>{file}, {}};
  }

  std::string python_ = find_program("python3", "/usr/local/bin:/usr/bin:/bin");
  ScratchDirectory folder_{::testing::TempDir()};
  std::vector<std::pair<std::size_t, pid_t>> ready_;
  std::vector<std::string> failures_;
  pid_t pid_ = 0;  ///< of run()
};

TEST_F(WarmWorkersTest, AProgramFindsWhatItFindsInANewInterpreter) {
  const std::string path = script("train.py", kInquiry);
  ::mkdir((folder_.path() + "/folder").c_str(), 0700);
  script("folder/__main__.py", kInquiry);
  compare({"-u", path, "--lr", "1", ""}, 0);
  compare({"-B", "-W", "ignore", "-X", "utf8", path}, 0);
  compare({"-u", folder_.path() + "/folder", "a"}, 0);
  compare({"-I", path}, 0);
  compare({"-u", "-c", kInquiry, "a"}, 0);
  compare({"-u", "-m", "json.tool", "--compact", path}, 1);
}

TEST_F(WarmWorkersTest, ItsEndIsThatOfANewInterpreter) {
  compare({"-u", script("raise.py", "def f(): raise ValueError('no')\nprint(1)\nf()\n")}, 1);
  compare({"-u", script("cause.py", "try: 1 / 0\nexcept ZeroDivisionError as e: raise KeyError(2) from e\n")}, 1);
  compare({"-u", script("wrong.py", "x = (\n")}, 1);
  compare({"-u",
           script("exit.py", "import atexit, sys\natexit.register(lambda: print('last', __name__))\nsys.exit('bye')")},
          1);
  compare({"-u", script("seven.py", "import sys\nprint(1)\nsys.exit(7)")}, 7);
  compare({"-u", script("interrupt.py", "raise KeyboardInterrupt")}, 130);
  compare({"-u", script("killed.py", "import os, signal\nprint(1)\nos.kill(os.getpid(), signal.SIGTERM)")}, 143);
  compare({"-u", script("hook.py",
                        "import sys\nsys.excepthook = lambda kind, error, trace: print(kind, trace.tb_lineno)\n1 / 0")},
          1);
  compare({"-u", folder_.path() + "/none.py"}, 2);
  compare({"-u", "-m", "no_such_module"}, 1);
}

TEST_F(WarmWorkersTest, PsAndDdpInfoSeeTheRanksWordsAndVariables) {
  const std::string path = script("show.py",
                                  "import sys\nfor name in 'cmdline', 'environ':\n"
                                  "    sys.stdout.buffer.write(open('/proc/self/' + name, 'rb').read())\n");
  auto warm = workers({rank({"-u", path, "last"})});
  make_ready(*warm);
  std::ifstream waiting{"/proc/" + std::to_string(ready_.at(0).second) + "/environ"};
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>{waiting}, {}).find("RANK="), std::string::npos);
  const Ran ran = run(rank({"-u", path, "last"}), warm.get(), environment());
  EXPECT_THAT(ran.out, HasSubstr(path + std::string(1, '\0') + "last" + std::string(1, '\0')));
  EXPECT_THAT(ran.out, HasSubstr(std::string(1, '\0') + "RANK=3" + std::string(1, '\0')));
}

TEST_F(WarmWorkersTest, ModulesAreImportedOnceBeforeAndAsTheProgramWould) {
  script("slow.py", "import os, sys\nprint('noise')\nthe_pid = os.getpid()\n");
  const std::string path =
      script("train.py", "import os, sys\nprint('slow' in sys.modules, __import__('slow').the_pid == os.getpid())");
  auto warm = workers({rank({"-u", path}), rank({"-u", path})}, "no_such,slow,json.no_such");
  make_ready(*warm);
  EXPECT_THAT(ready_, ElementsAre(Pair(0U, ::testing::_), Pair(1U, ::testing::_)));
  EXPECT_THAT(failures_, ElementsAre(HasSubstr("no_such: ModuleNotFoundError: No module named 'no_such'"),
                                     HasSubstr("json.no_such: ModuleNotFoundError")));
  EXPECT_EQ(run(rank({"-u", path}), warm.get(), environment()).out, "True True\n");
}

/// Signals to it would be lost, and a rank that is to end would not.
TEST_F(WarmWorkersTest, OneThatStillImportsIsNotTakenUntilItHas) {
  const std::string fifo = folder_.path() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  script("slow.py", "open('" + fifo + "').read()");
  const std::string path = script("train.py", "import sys\nprint('slow' in sys.modules)\nsys.exit(3)");
  auto warm = workers({rank({"-u", path})}, "slow");
  warm->advance();
  base::UniqueFd imports{::open(fifo.c_str(), O_WRONLY | O_CLOEXEC)};  // returns once it reads there
  EXPECT_FALSE(warm->take(0, rank({"-u", path}).request, environment()));
  imports.reset();
  ASSERT_TRUE(base::wait_for(warm->fd(), POLLIN, warm_patience()));
  const Ran ran = run(rank({"-u", path}), warm.get(), environment());  // without advance(): as while a plan is prepared
  EXPECT_EQ(ran.status, 3) << ran.err;
  EXPECT_EQ(ran.out, "True\n");
}

/// Another user may have filled it, or it has a file with the name of a module that the interpreter needs first.
TEST_F(WarmWorkersTest, TheWorkingFolderIsNotSearchedForAScriptsModules) {
  for (const char* name : {"socket.py", "signal.py", "selectors.py", "array.py", "struct.py", "pkgutil.py"})
    script(name, "open('" + folder_.path() + "/mark', 'w')\n");
  ::mkdir((folder_.path() + "/away").c_str(), 0700);
  const std::string path = script("away/train.py", kInquiry);
  const WarmRank like = rank({"-u", path});
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  auto warm = workers({like});
  make_ready(*warm);
  std::filesystem::current_path(before);
  const Ran in_warm = run(like, warm.get(), environment());
  EXPECT_FALSE(std::ifstream(folder_.path() + "/mark")) << in_warm.err;
  EXPECT_EQ(in_warm.status, 0);
}

/// faulthandler's are set in C, where signal.getsignal() does not see them.
TEST_F(WarmWorkersTest, AModuleFindsTheEndOfItsInputAndKeepsItsHandlers) {
  script("reads.py",
         "import faulthandler, os, signal, sys\nwas = os.read(0, 10)\nfaulthandler.register(signal.SIGUSR1)\n"
         "signal.signal(signal.SIGUSR2, lambda *_: print('own', flush=True))\n");
  const std::string path = script("train.py",
                                  "import os, reads, signal, sys\nprint(reads.was, sys.stdin.read(), flush=True)\n"
                                  "os.kill(os.getpid(), signal.SIGUSR2)\nos.kill(os.getpid(), signal.SIGUSR1)\n");
  auto warm = workers({rank({"-u", path})}, "reads");
  make_ready(*warm);
  const Ran ran = run(rank({"-u", path}), warm.get(), environment());
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out, "b'' typed\nown\n");
}

TEST_F(WarmWorkersTest, OneWithAnInitializedMpiIsNotTaken) {
  ::mkdir((folder_.path() + "/mpi4py").c_str(), 0700);
  script("mpi4py/__init__.py", "");
  script("mpi4py/MPI.py", "def Is_initialized(): return True\n");
  const std::string path = script("train.py", "");
  auto warm = workers({rank({"-u", path})}, "mpi4py.MPI");
  make_ready(*warm);
  EXPECT_THAT(failures_, ElementsAre(HasSubstr("mpi4py.MPI: MPI is initialized before the rank has its place")));
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(ready_.at(0).second), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(warm->take(0, rank({"-u", path}).request, environment()));
}

TEST_F(WarmWorkersTest, WhatIsForAnotherCommandEnvironmentOrCoresIsNotTaken) {
  const std::string path = script("train.py", "");
  auto warm = workers({rank({"-u", path})});
  make_ready(*warm);
  const auto taken = [&](const WarmRank& like, const EnvironmentMap& with) {
    return warm->take(0, like.request, with).has_value();
  };
  WarmRank other = rank({"-u", path, "more"});
  EXPECT_FALSE(taken(other, environment()));
  other = rank({"-u", path});
  other.request.binding.emplace();
  EXPECT_FALSE(taken(other, environment()));
  for (const char* name :
       {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "UCX_NET_DEVICES", "LD_PRELOAD", "PYTHONPATH", "MINE"}) {
    EnvironmentMap differs = environment();
    differs[name] = "2";
    EXPECT_FALSE(taken(rank({"-u", path}), differs)) << name;
  }
  EnvironmentMap less = environment();
  less.erase("MINE");
  EXPECT_FALSE(taken(rank({"-u", path}), less));
  EXPECT_FALSE(warm->take(1, rank({"-u", path}).request, environment()).has_value());
  for (const char* late : {"RANK", "MASTER_PORT", "PMIX_MCA_gds", "TORCHELASTIC_ERROR_FILE", "OMPI_COMM_WORLD_RANK",
                           "HOROVOD_RANK", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"})
    EXPECT_TRUE(is_late_variable(late)) << late;
  EXPECT_EQ(run(rank({"-u", path}), warm.get(), environment()).status, 0);
}

TEST_F(WarmWorkersTest, OneThatWasKilledIsNotTaken) {
  const std::string path = script("train.py", "");
  auto warm = workers({rank({"-u", path}), rank({"-u", path})});
  make_ready(*warm);
  const auto killed = static_cast<pid_t>(ready_.at(0).second);
  ::kill(killed, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(killed), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(warm->take(0, rank({"-u", path}).request, environment()));
  EXPECT_EQ(::kill(ready_.at(1).second, 0), 0);
  warm.reset();
  EXPECT_NE(::kill(ready_.at(1).second, 0), 0);
}

TEST_F(WarmWorkersTest, OneThatDiesWhileItImportsDoesNotKeepTheNextFromIt) {
  script("dies.py", "import os\nif not os.path.exists('" + folder_.path() + "/mark'):\n    open('" + folder_.path() +
                        "/mark', 'w')\n    os._exit(0)\n");
  const std::string path = script("train.py", "");
  auto warm = workers({rank({"-u", path}), rank({"-u", path})}, "dies");
  make_ready(*warm);
  EXPECT_THAT(ready_, ElementsAre(Pair(1U, ::testing::_)));
}

}  // namespace
}  // namespace ddp::launcher
