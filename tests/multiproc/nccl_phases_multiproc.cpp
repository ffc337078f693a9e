// Each phase of a group's life on NCCL in which a rank is killed or stopped, whichever rank it is: the others end with
// one error, and their flight recorders name the operation in it.
#include <stdlib.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "nccl_processes.hpp"

namespace ddp::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int kRanks = 4;

/// Where the victim falls, by the doubles' rules: {0} is its rank, {1} kill or stop, {2} a rank beside it.
struct Phase {
  const char* name;
  const char* nccl_faults;
  const char* cuda_faults = "";
  /// Of the survivors' error; {0} as above. Empty: they have none.
  const char* expected = "code=peer_lost ranks=[{0}]";
  bool in_operation = true;  ///< of the program's, which the recorders have
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

class NcclPhases : public testing::TestWithParam<std::size_t> {
 protected:
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
    job.ranks = std::make_unique<RankProcesses>(kRanks, std::vector<std::string>{NCCL_RANK, "steps", "6"},
                                                with_doubles(settings));
    return job;
  }

  /// What a rank's recorder has of the operation that @p error names: "named", with the label of its step; or "behind":
  /// the rank has called the one before, and not this one.
  static std::string recorded(const std::string& file, const std::string& error) {
    std::ifstream in(file);
    const auto document = nlohmann::json::parse(in, nullptr, false);
    if (document.is_discarded()) return "no file";
    if (error.find(document["ddp"]["reason"].get<std::string>()) == std::string::npos) return "another reason";
    int last = 0;
    for (const auto& entry : document["entries"]) {
      const auto& ours = entry["ddp"];
      const std::string operation = ours["operation"];
      if (!entry["is_p2p"].get<bool>()) last = std::max(last, ours["sequence"].get<int>());
      const std::string words = entry["is_p2p"].get<bool>()
                                    ? operation + " of"
                                    : fmt::format("{} #{} of", operation, ours["sequence"].get<int>());
      if (entry["state"] == "completed" ||
          !std::regex_match(ours["label"].get<std::string>(), std::regex("step [1-6]")))
        continue;
      if (error.find(words) != std::string::npos) return "named";
    }
    return error.find(fmt::format("#{} of", last + 1)) != std::string::npos ? "behind" : "not named";
  }
};

/// In each phase one rank is killed and another stopped; with DDP_TEST_FALLS set each of the three, as each may be
/// special: the root of NCCL's bootstrap, one in the middle, and the last.
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
        EXPECT_THAT(has, testing::AnyOf("named", "behind")) << "rank " << rank << ": " << error;
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
