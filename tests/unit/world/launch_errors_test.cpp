// Environments that cannot be used: every one is refused with the variable's name, its value and what to do; and
// sources that contradict each other.
#include "unit/kvs/rank_threads.hpp"
#include "unit/world/launch_samples.hpp"
#include "world/launch_environment.hpp"

namespace ddp::world {
namespace {

using namespace samples;

struct ErrorCase {
  const char* name;
  Variables variables;
  std::optional<LaunchSource> forced;
  ErrorCode code;
  std::vector<std::string> said;
};

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(LaunchErrors, Table) {
  using enum ErrorCode;
  const std::vector<ErrorCase> cases{
      {"port is no number",
       torchrun() + Variables{{"MASTER_PORT", "http"}},
       {},
       invalid_argument,
       {"MASTER_PORT", "'http'"}},
      {"port 0", torchrun() + Variables{{"MASTER_PORT", "0"}}, {}, invalid_argument, {"MASTER_PORT=0", "1 to 65535"}},
      {"port 70000", torchrun() + Variables{{"MASTER_PORT", "70000"}}, {}, invalid_argument, {"MASTER_PORT=70000"}},
      {"port below 0", torchrun() + Variables{{"MASTER_PORT", "-1"}}, {}, invalid_argument, {"MASTER_PORT", "'-1'"}},
      {"no address", torchrun() + Variables{{"MASTER_ADDR", ""}}, {}, invalid_argument, {"MASTER_ADDR is empty"}},
      {"rank is the size", torchrun() + Variables{{"RANK", "4"}}, {}, invalid_argument, {"RANK=4", "WORLD_SIZE=4"}},
      {"rank above the size", torchrun() + Variables{{"RANK", "9"}}, {}, invalid_argument, {"RANK=9", "WORLD_SIZE=4"}},
      {"rank below 0", torchrun() + Variables{{"RANK", "-1"}}, {}, invalid_argument, {"RANK", "'-1'"}},
      {"rank is no number", torchrun() + Variables{{"RANK", "one"}}, {}, invalid_argument, {"RANK", "'one'"}},
      {"rank is empty", torchrun() + Variables{{"RANK", ""}}, {}, invalid_argument, {"RANK", "''"}},
      {"size 0", torchrun() + Variables{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {}, invalid_argument, {"WORLD_SIZE=0"}},
      {"size below 0", torchrun() + Variables{{"WORLD_SIZE", "-4"}}, {}, invalid_argument, {"WORLD_SIZE", "'-4'"}},
      {"local rank too large", torchrun() + Variables{{"LOCAL_RANK", "4"}}, {}, invalid_argument, {"LOCAL_RANK=4"}},
      {"node rank is no number", torchrun() + Variables{{"GROUP_RANK", "x"}}, {}, invalid_argument, {"GROUP_RANK"}},
      {"no LOCAL_RANK", without(bare_torch(), "LOCAL_RANK"), {}, invalid_argument, {"LOCAL_RANK is not set"}},
      {"no MASTER_ADDR", without(bare_torch(), "MASTER_ADDR"), {}, invalid_argument, {"MASTER_ADDR is not set"}},
      {"no MASTER_PORT", without(bare_torch(), "MASTER_PORT"), {}, invalid_argument, {"MASTER_PORT is not set"}},
      {"several tasks, no PMI", slurm(4), {}, unavailable, {"4 tasks", "--mpi=pmix"}},
      {"several tasks, no PMI, forced", slurm(4), kSlurm, unavailable, {"4 tasks", "--mpi=pmix"}},
      {"tasks are no number",
       slurm(1, 0) + Variables{{"SLURM_STEP_NUM_TASKS", "many"}},
       {},
       invalid_argument,
       {"SLURM_STEP_NUM_TASKS", "'many'"}},
      {"several of Open MPI, no PMIx", open_mpi(1, 4), {}, unavailable, {"4 ranks", "PMIX_NAMESPACE"}},
      {"Open MPI's rank is its size", open_mpi(1, 1), {}, invalid_argument, {"OMPI_COMM_WORLD_RANK=1"}},
      {"PMIX_RANK is no number", pmix() + Variables{{"PMIX_RANK", "x"}}, {}, invalid_argument, {"PMIX_RANK", "'x'"}},
      {"PMI_SIZE is no number", pmi2() + Variables{{"PMI_SIZE", ""}}, {}, invalid_argument, {"PMI_SIZE", "''"}},
      {"forced PMIx is not there", torchrun(), kPmix, unavailable, {"DDP_LAUNCH", "pmix", "PMIX_NAMESPACE"}},
      {"forced PMI-1 is not there", pmix(), kPmi1, unavailable, {"pmi1", "PMI_FD"}},
      {"tasks of Flux without PMI", flux(), {}, unavailable, {"Flux", "4 tasks", "flux run -o pmi=simple"}},
      {"tasks of PALS without PMIx",
       {{"PALS_RANKID", "0"}, {"PMI_SIZE", "8"}},
       {},
       unavailable,
       {"PALS", "8 tasks", "mpiexec --pmi=pmix"}},
      {"forced PMI-2 is not there", pmix(), kPmi2, unavailable, {"pmi2", "PMI_FD"}},
      {"forced Open MPI is not there", pmix(), kOpenMpi, unavailable, {"openmpi", "OMPI_COMM_WORLD_RANK"}},
      {"forced Slurm is not there", {}, kSlurm, unavailable, {"slurm", "SLURM_PROCID"}},
      {"forced torchrun is not there", pmix(), kTorchrun, invalid_argument, {"RANK is not set"}},
  };
  for (const ErrorCase& sample : cases) {
    SCOPED_TRACE(sample.name);
    const auto error = test::error_of([&] { detect_launch(base::Environment{sample.variables}, sample.forced); });
    if (!error) {
      ADD_FAILURE() << "accepted";
      continue;
    }
    EXPECT_EQ(to_string(error->code()), to_string(sample.code));
    for (const std::string& text : sample.said) EXPECT_THAT(error->what(), HasSubstr(text));
    EXPECT_FALSE(error->hint().empty());
  }
}

/// What comes of the environment once the source that was chosen says @p rank of @p size.
std::optional<Error> agreement(const Variables& variables, std::string_view chosen, int rank, int size) {
  const LaunchEnvironment launch = detect_launch(base::Environment{variables}, {});
  return test::error_of([&] { check_agreement(launch, chosen, rank, size); });
}

TEST(LaunchConflicts, SourcesThatAgreePass) {
  EXPECT_FALSE(agreement(pmix() + slurm(4) + bare_torch() + pmi2(), "PMIx", 1, 4));
  EXPECT_FALSE(agreement(pmi2() + slurm(4), "PMI-2", 1, 4));
  EXPECT_FALSE(agreement(torchrun() + slurm(2, 0), "c10d TCPStore", 1, 4)) << "the agent's task is another";
  EXPECT_FALSE(agreement(pmix("1234.1") + open_mpi(1, 4) + slurm(2, 0), "PMIx", 1, 4)) << "orted's task is another";
  EXPECT_FALSE(agreement({}, "memory", 0, 1));
}

TEST(LaunchConflicts, BothValuesAreNamed) {
  const auto rank = agreement(pmix() + bare_torch() + Variables{{"RANK", "3"}}, "PMIx", 1, 4);
  ASSERT_TRUE(rank);
  EXPECT_EQ(rank->code(), ErrorCode::conflict);
  EXPECT_THAT(rank->what(), HasSubstr("PMIx says 1, RANK says 3"));
  EXPECT_THAT(rank->hint(), HasSubstr("DDP_LAUNCH=pmix"));

  const auto size = agreement(pmix() + slurm(8), "PMIx", 1, 4);
  ASSERT_TRUE(size);
  EXPECT_EQ(size->code(), ErrorCode::conflict);
  EXPECT_THAT(size->what(), HasSubstr("PMIx says 4, SLURM_STEP_NUM_TASKS says 8"));
}

TEST(LaunchConflicts, EveryClaimCounts) {
  const auto conflicts = [](const Variables& variables, std::string_view variable) {
    const auto error = agreement(variables, "PMIx", 1, 4);
    return error && error->cause().find(std::string(variable) + " says") != std::string::npos;
  };
  EXPECT_TRUE(conflicts(pmix() + slurm(4, 2), "SLURM_PROCID"));
  EXPECT_TRUE(conflicts(pmix() + open_mpi(0, 4), "OMPI_COMM_WORLD_RANK"));
  EXPECT_TRUE(conflicts(pmix() + open_mpi(1, 5), "OMPI_COMM_WORLD_SIZE"));
  EXPECT_TRUE(conflicts(pmix() + pmi2() + Variables{{"PMI_RANK", "0"}}, "PMI_RANK"));
  EXPECT_TRUE(conflicts(pmix() + pmi2() + Variables{{"PMI_SIZE", "1"}}, "PMI_SIZE"));
  EXPECT_TRUE(conflicts(pmix() + bare_torch() + Variables{{"WORLD_SIZE", "8"}}, "WORLD_SIZE"));
  EXPECT_TRUE(conflicts(pmix() + Variables{{"PMIX_RANK", "2"}}, "PMIX_RANK"));
}

TEST(LaunchConflicts, ALeftoverRankIsNotTakenForAWorldOfOne) {
  const auto error = agreement({{"RANK", "3"}, {"WORLD_SIZE", "1"}}, "memory", 0, 1);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::conflict);
}

TEST(LaunchConflicts, AForcedSourceIsAskedAlone) {
  const LaunchEnvironment launch =
      detect_launch(base::Environment{pmix() + bare_torch() + Variables{{"RANK", "3"}}}, LaunchSource::pmix);
  EXPECT_NO_THROW(check_agreement(launch, "PMIx", 1, 4));
}

}  // namespace
}  // namespace ddp::world
