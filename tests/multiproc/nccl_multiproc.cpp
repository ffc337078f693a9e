// Groups with NCCL for CUDA tensors, as processes over the doubles of CUDA and NCCL: agreement on the backend, and
// ranks that are killed, stopped or hang in each phase.
#include <regex>

#include "nccl_processes.hpp"
#include "support/checkout.hpp"
#include "support/sanitized.hpp"

namespace ddp::test {
namespace {

constexpr int kVictim = 2;

std::vector<RankResult> run(int size, const std::vector<std::string>& scenario, std::vector<std::string> more,
                            const std::string& devices = "8") {
  std::vector<std::string> command{built_program("nccl_rank")};
  command.insert(command.end(), scenario.begin(), scenario.end());
  RankProcesses ranks(size, command, with_doubles(std::move(more), devices));
  return ranks.wait(Deadline::after(seconds(300)));
}

/// DDP_TEST_JITTER_SEED: a different order of work among streams.
std::vector<std::string> with_jitter(const std::string& most_us) {
  const char* const seed = std::getenv("DDP_TEST_JITTER_SEED");
  return {std::string("FAKE_CUDA_JITTER_SEED=") + (seed == nullptr ? "5" : seed), "FAKE_CUDA_JITTER_US=" + most_us};
}

TEST(NcclGroups, ServeBothKindsOfTensors) {
  for (const auto& [size, setting] :
       {std::pair{3, "DDP_BACKEND=auto"}, std::pair{4, "DDP_NCCL_CONNECT=lazy"}, std::pair{3, "DDP_NCCL_SPLIT=1"},
        std::pair{1, "DDP_BACKEND=nccl"}, std::pair{2, "DDP_BACKEND_PATH=/nonexistent"}}) {
    for (const RankResult& result : run(size, {"use"}, {setting})) {
      EXPECT_EQ(result.exit_code, 0) << setting << "\n" << result.output;
    }
  }
}

TEST(NcclGroups, OtherOperationsGoOnWhileMemoryIsAllocated) {
  for (const char* setting : {"DDP_NCCL_REGISTER=window", "DDP_NCCL_CONNECT=lazy"}) {
    for (const RankResult& result : run(3, {"allocate-meanwhile"}, {setting, "DDP_COLLECTIVE_TIMEOUT=30"})) {
      EXPECT_EQ(result.exit_code, 0) << setting << "\n" << result.output;
    }
  }
}

TEST(NcclGroups, AverageGradientsInOrderWithTheProgramsStream) {
  // buckets in the program's memory, and in NCCL's
  for (const char* more : {"FAKE_CUDA_JITTER_SEED=3", "DDP_NCCL_REGISTER=window"}) {
    for (const RankResult& result : run(3, {"train"}, {more, "FAKE_CUDA_JITTER_US=2000"})) {
      EXPECT_EQ(result.exit_code, 0) << result.output;
    }
  }
}

/// Gradients on a device, whose kernels divide and cast them.
struct NcclGradients : testing::Test {
  void SetUp() override {
#ifdef DDP_NO_DEVICE_CODE
    GTEST_SKIP() << "this build has no device code";
#endif
  }
};

/// With and without views, unused parameters and static graphs, hooks and other types to reduce in. DDP_TEST_STEPS: the
/// number of steps of each.
TEST_F(NcclGradients, HaveTheBitsOfThoseOfTheCpu) {
  const char* const wanted = std::getenv("DDP_TEST_STEPS");
  const std::string steps = wanted != nullptr ? wanted : (kSanitized ? "2" : "0");
  for (const auto& [size, steps_of_all] : {std::pair{1, wanted != nullptr ? steps : "1"}, std::pair{2, steps}}) {
    for (const RankResult& result : run(size, {"reduce", steps_of_all}, with_jitter("100"))) {
      EXPECT_EQ(result.exit_code, 0) << result.output;
    }
  }
}

/// Accumulated gradients, in another group's buckets, and of ranks that have run out of inputs.
TEST_F(NcclGradients, HaveTheBitsOfThoseOfTheCpuOtherwise) {
  for (const RankResult& result : run(2, {"reduce_otherwise"}, with_jitter("2000"))) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST_F(NcclGradients, AKernelThatIsNotLaunchedEndsTheStepOnAllRanks) {
  const auto results = run(2, {"reduce", "3"}, {"FAKE_CUDA_FAULTS=cuLaunchKernel@1#20=fail:719"});
  EXPECT_THAT(results[0].output, HasSubstr("code=aborted ranks=[1] moving gradients on a device: it failed on rank 1"));
  EXPECT_THAT(results[1].output, HasSubstr("CUDA_ERROR_LAUNCH_FAILED (719)"));
}

TEST_F(NcclGradients, AStepOfAReducerBecomesAGraph) {
  for (const char* where : {"view", "copy", "hook"}) {
    for (const RankResult& result : run(2, {"capture", where}, {})) EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(NcclGroups, OtherStreamsWaitForWhatIsCapturedIntoAGraph) {
  for (const RankResult& result : run(2, {"capture_aside"}, {})) EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(NcclGroups, TheChoiceIsToldOnce) {
  const auto results = run(2, {"use"}, {});
  EXPECT_THAT(results[0].output, HasSubstr("CPU tensors by host, CUDA tensors by nccl"));
  EXPECT_THAT(results[1].output, testing::Not(HasSubstr("CUDA tensors by")));
}

TEST(NcclGroups, RanksThatShareADeviceDoWithoutOrFail) {
  for (const RankResult& result : run(2, {"cpu"}, {"DDP_BACKEND=auto"}, "1")) {
    // both see only one device, which each takes for its own
    EXPECT_EQ(result.exit_code, 3) << result.output;
    EXPECT_THAT(result.output, HasSubstr("NCCL is not used: rank 0 (process "));
    EXPECT_THAT(result.output, HasSubstr("have the same GPU"));
  }
  for (const RankResult& result : run(2, {"cpu"}, {"DDP_BACKEND=nccl"}, "1")) {
    EXPECT_THAT(result.output, HasSubstr("ERROR code=conflict ranks=[0,1]"));
  }
  for (const RankResult& result : run(2, {"cpu"}, {"DDP_BACKEND=nccl"}, "0")) {
    EXPECT_THAT(result.output, HasSubstr("ERROR code=unavailable ranks=[0,1]"));
    EXPECT_THAT(result.output, HasSubstr("CUDA_ERROR_NO_DEVICE"));
  }
}

TEST(NcclGroups, OtherVersionsAreListedByAll) {
  for (const RankResult& result : run(3, {"old"}, {"DDP_BACKEND=nccl"})) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.output, HasSubstr("code=mismatch ranks=[1]"));
    EXPECT_THAT(result.output, HasSubstr("rank 1: NCCL 2.18.5"));
  }
}

/// A device runs one operation at a time here, and each rank's waits for the one that the other rank has not reached.
/// Aborting the first failed group makes room for the other's operation, which may still succeed; both operations of a
/// rank may, if it began so much later that its own deadline had not come.
TEST(NcclGroups, TwoThatRanksStartInDifferentOrdersEndByTheirDeadline) {
  int timeouts = 0;
  std::string outputs;
  for (const RankResult& result : run(2, {"cross"}, {"FAKE_NCCL_DEVICE_SLOTS=1"})) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    const std::regex timeout("ERROR code=timeout all_reduce #[0-9]+ of float32 x [12]0");
    timeouts += std::regex_search(result.output, timeout) ? 1 : 0;
    EXPECT_THAT(result.output, testing::AllOf(HasSubstr("ENDED first"), HasSubstr("ENDED second")));
    outputs += result.output;
  }
  EXPECT_GT(timeouts, 0) << outputs;
  for (const RankResult& result : run(2, {"cross"}, {})) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, testing::Not(HasSubstr("ERROR"))) << "with room for both, nothing waits";
  }
}

TEST(NcclGroups, SurvivorsMakeAnotherInTheSameProcess) {
  std::string folder = testing::TempDir() + "ddp_survivors_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  RankProcesses ranks(4, {built_program("nccl_rank"), "survive", folder},
                      with_doubles({"FAKE_NCCL_FAULTS=AllReduce@2#20=kill", "FAKE_NCCL_PEERS=silent"}));
  const auto results = ranks.wait(Deadline::after(seconds(100)));
  for (const int rank : {0, 1, 3}) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << "\n" << result.output;
  }
  std::filesystem::remove_all(folder);
}

TEST(NcclGroups, TheSameProcessesMakeOthersInAnyShape) {
  std::string folder = testing::TempDir() + "ddp_shapes_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  for (const RankResult& result : run(4, {"reshape", folder}, {})) EXPECT_EQ(result.exit_code, 0) << result.output;
  std::filesystem::remove_all(folder);
}

/// The fault of the victim, or of all.
struct Fall {
  const char* name;
  std::vector<std::string> faults;
  const char* expected;  ///< of the survivors
  double longest;        ///< seconds from the operation's begin
  /// False for the rank in whose call it happens, which may name an earlier operation: it cannot look at any.
  bool one_operation = true;
};
void PrintTo(const Fall& fall, std::ostream* out) { *out << fall.name; }

class NcclFalls : public testing::TestWithParam<Fall> {};

TEST_P(NcclFalls, EndEverywhereWithOneError) {
  const Fall& fall = GetParam();
  RankProcesses ranks(4, {built_program("nccl_rank"), "loop", "8"}, with_doubles(fall.faults));
  const auto results = ranks.wait(Deadline::after(seconds(100)));
  std::string first;
  for (int rank = 0; rank < 4; ++rank) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    const bool fell = std::string(fall.expected).find("ranks=[2]") != std::string::npos && rank == kVictim;
    if (fell) continue;
    EXPECT_EQ(result.exit_code, 3) << "rank " << rank << "\n" << result.output;
    EXPECT_THAT(result.output, HasSubstr(fall.expected)) << "rank " << rank;
    EXPECT_LT(seconds_behind(result.output), fall.longest) << result.output;
    const std::string error = error_in(result.output);
    if (first.empty()) first = error;
    if (fall.one_operation) {
      EXPECT_EQ(error, first) << "one error on all";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    AtEachPhase, NcclFalls,
    testing::Values(Fall{"killed_in_a_call", {"FAKE_NCCL_FAULTS=AllReduce@2#20=kill"}, "code=peer_lost ranks=[2]", 8},
                    Fall{"a_call_hangs", {"FAKE_NCCL_FAULTS=AllReduce@2#20=hang"}, "code=timeout ranks=[", 14, false},
                    Fall{"a_kernel_hangs", {"FAKE_NCCL_FAULTS=AllReduce@2#20=kernel_hang"}, "code=timeout ranks=[", 14},
                    Fall{"an_abort_blocks",
                         {"FAKE_NCCL_FAULTS=AllReduce@2#20=kill,CommAbort=delay:2500", "FAKE_NCCL_PEERS=silent"},
                         "code=peer_lost ranks=[2]",
                         14},
                    Fall{"an_asynchronous_error",
                         {"FAKE_NCCL_FAULTS=AllReduce@1#20=async:ncclSystemError:5,AllReduce@1#20=kernel_hang"},
                         "ncclSystemError (2)",
                         14}),
    [](const testing::TestParamInfo<Fall>& fall) { return std::string(fall.param.name); });

}  // namespace

// Each phase of a group's life on NCCL in which a rank is killed or stopped, whichever rank it is: the others end with
// one error, and their flight recorders show the operation that it names.

namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 4;

/// Where the victim dies, by the doubles' rules: {0} is its rank, {1} kill or stop, {2} a neighbouring rank.
struct Phase {
  const char* name;
  const char* nccl_faults;
  const char* cuda_faults = "";
  /// The survivors' error; {0} as above. Empty: none.
  const char* expected = "code=peer_lost ranks=[{0}]";
  bool in_operation = true;  ///< an operation of the program, which the recorders have
  const char* setting = "DDP_PEER_TIMEOUT=5";
};

const std::array kPhases{
    Phase{.name = "bootstrap",
          .nccl_faults = "",
          .cuda_faults = "cuDeviceGetUuid@{0}={1}",
          .expected = "code=timeout ranks=[{0}] fence",
          .in_operation = false,
          .setting = "DDP_INIT_TIMEOUT=12"},
    Phase{.name = "init", .nccl_faults = "CommInitRankConfig@{0}={1}", .in_operation = false},
    Phase{.name = "call", .nccl_faults = "AllReduce@{0}#5={1}"},
    Phase{.name = "group_call", .nccl_faults = "Recv@{0}#4={1}"},
    Phase{.name = "kernel", .nccl_faults = "AllReduce@{0}#5=kernel_{1}"},
    Phase{.name = "abort",
          .nccl_faults = "AllReduce@{2}#5=async:ncclSystemError:5,AllReduce@{2}#5=kernel_hang,CommAbort@{0}={1}",
          .expected = "ncclSystemError (2)"},
    Phase{.name = "close", .nccl_faults = "CommFinalize@{0}={1}", .expected = "", .in_operation = false}};

struct NcclPhases : testing::TestWithParam<std::size_t> {
  struct Job {
    int victim;
    bool stopped;
    std::string folder;
    std::unique_ptr<RankProcesses> ranks{};
  };

  static Job start(const Phase& phase, int victim, bool stopped) {
    Job job{.victim = victim, .stopped = stopped, .folder = testing::TempDir() + "ddp_phase_XXXXXX"};
    EXPECT_NE(::mkdtemp(job.folder.data()), nullptr);
    const char* const how = stopped ? "stop" : "kill";
    const int beside = (victim + 1) % kRanks;
    const std::vector<std::string> settings{
        "FAKE_NCCL_FAULTS=" + fmt::format(fmt::runtime(phase.nccl_faults), victim, how, beside),
        "FAKE_CUDA_FAULTS=" + fmt::format(fmt::runtime(phase.cuda_faults), victim, how), "FAKE_NCCL_PEERS=silent",
        "DDP_FLIGHT_DIR=" + job.folder, phase.setting};
    job.ranks = std::make_unique<RankProcesses>(
        kRanks, std::vector<std::string>{built_program("nccl_rank"), "steps", "6"}, with_doubles(settings));
    return job;
  }

  /// What a rank's recorder has of the operation that @p error names: "named", with the label of its step; "completed":
  /// it failed on another rank; or "behind": the rank has called earlier operations, but not this one.
  static std::string recorded(const std::string& file, const std::string& error) {
    std::ifstream in(file);
    const auto document = nlohmann::json::parse(in, nullptr, false);
    if (document.is_discarded()) return "no file";
    if (error.find(document["ddp"]["reason"].get<std::string>()) == std::string::npos) return "another reason";
    int last = 0;
    bool completed = false;
    for (const auto& entry : document["entries"]) {
      const auto& ours = entry["ddp"];
      const std::string operation = ours["operation"];
      if (!entry["is_p2p"].get<bool>()) last = std::max(last, ours["sequence"].get<int>());
      const std::string words = entry["is_p2p"].get<bool>()
                                    ? operation + " of"
                                    : fmt::format("{} #{} of", operation, ours["sequence"].get<int>());
      if (error.find(words) == std::string::npos ||
          !std::regex_match(ours["label"].get<std::string>(), std::regex("step [1-6]")))
        continue;
      if (entry["state"] != "completed") return "named";
      completed = true;
    }
    if (completed) return "completed";
    std::smatch number;
    const bool found = std::regex_search(error, number, std::regex("#([0-9]+) of"));
    return found && std::stoi(number[1]) > last ? "behind" : "not named";
  }
};

/// In each phase one rank is killed and another stopped; with DDP_TEST_FALLS set, each of the three ranks, as each may
/// be special: the root of NCCL's bootstrap, one in the middle, and the last.
TEST_P(NcclPhases, ARankThatFallsEndsTheOthersWithOneError) {
  const std::size_t turn = GetParam();
  const Phase& phase = kPhases.at(turn);
  std::vector<Job> jobs;
  const std::array victims{0, 1, kRanks - 1};
  for (std::size_t i = 0; i < victims.size(); ++i) {
    for (const bool stopped : {false, true}) {
      const bool in_turn = i == (turn + (stopped ? 1 : 0)) % victims.size();
      if (in_turn || std::getenv("DDP_TEST_FALLS") != nullptr) jobs.push_back(start(phase, victims[i], stopped));
    }
  }
  for (Job& job : jobs) {
    SCOPED_TRACE(fmt::format("{}: rank {} {}", phase.name, job.victim, job.stopped ? "stopped" : "killed"));
    const auto results = job.ranks->wait(Deadline::after(std::chrono::seconds(100)),
                                         job.stopped ? std::optional(job.victim) : std::nullopt);
    const std::string expected = fmt::format(fmt::runtime(phase.expected), job.victim);
    std::string first;
    int named = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const RankResult& result = results[static_cast<std::size_t>(rank)];
      if (rank == job.victim) {
        EXPECT_EQ(result.signal, job.stopped ? 0 : SIGKILL) << result.output;
        continue;
      }
      EXPECT_TRUE(result.ended) << "rank " << rank << "\n" << result.output;
      if (expected.empty()) {
        EXPECT_EQ(result.exit_code, 0) << "rank " << rank << "\n" << result.output;
        EXPECT_THAT(result.output, HasSubstr("DONE"));
        EXPECT_LT(seconds_behind(result.output, "CLOSED "), 13) << "it waits for NCCL, then for no more";
        continue;
      }
      EXPECT_EQ(result.exit_code, 3) << "rank " << rank << "\n" << result.output;
      EXPECT_THAT(result.output, HasSubstr(expected)) << "rank " << rank;
      EXPECT_LT(seconds_behind(result.output), 14) << result.output;
      const std::string error = error_in(result.output);
      if (first.empty()) first = error;
      EXPECT_EQ(error, first) << "one error on all";
      if (phase.in_operation) {
        const std::string has = recorded(fmt::format("{}/ddp.rank{}.json", job.folder, rank), error);
        EXPECT_THAT(has, testing::AnyOf("named", "completed", "behind")) << "rank " << rank << ": " << error;
        named += has == "named" ? 1 : 0;
      }
    }
    EXPECT_EQ(named > 0, phase.in_operation) << first;
    fs::remove_all(job.folder);
  }
}

INSTANTIATE_TEST_SUITE_P(OfAGroup, NcclPhases, testing::Range(std::size_t{0}, kPhases.size()),
                         [](const auto& turn) { return std::string(kPhases.at(turn.param).name); });

}  // namespace

}  // namespace ddp::test
