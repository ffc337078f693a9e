// Engines are known by the variables of their tasks; what these are in real ones is in tests/commands and
// tests/cluster.
#include "base/launch_engine.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/error_of.hpp"

namespace ddp::base {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

std::optional<EngineTask> task_of(Variables variables) { return EngineTask::read(Environment{std::move(variables)}); }

TEST(LaunchEngine, IsTheInnermostByItsTasksVariables) {
  const Variables ompi{{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_NAMESPACE", "1.2"}};
  EXPECT_EQ(task_of(ompi)->engine, "Open MPI");
  EXPECT_EQ(task_of(ompi)->rank, 2);
  EXPECT_EQ(task_of(ompi)->tasks, 4);
  EXPECT_EQ(task_of(ompi)->tasks_here, std::nullopt);
  Variables jsrun = ompi;  // Spectrum MPI is an Open MPI
  jsrun["JSM_NAMESPACE_RANK"] = "3";
  EXPECT_EQ(task_of(jsrun)->engine, "jsrun");
  EXPECT_EQ(task_of(jsrun)->rank, 3);
  for (const char* name : {"prterun-n0-77@1", "prte-n0-77@1", "prte.n0.77"})
    EXPECT_EQ(task_of({{"PMIX_NAMESPACE", name}, {"PMIX_RANK", "1"}})->engine, "PRRTE") << name;
  EXPECT_EQ(task_of({{"PMIX_NAMESPACE", "other"}, {"PMIX_RANK", "1"}})->engine, "a PMIx launcher");
  EXPECT_EQ(task_of({{"PALS_RANKID", "1"}, {"PMI_SIZE", "2"}, {"PMIX_NAMESPACE", "x"}})->engine, "PALS");
  const Variables hydra{{"MPI_LOCALNRANKS", "2"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"FLUX_TASK_RANK", "0"}};
  EXPECT_EQ(task_of(hydra)->engine, "Hydra") << "in a task of Flux";
  EXPECT_EQ(task_of(hydra)->tasks_here, 2);
}

TEST(LaunchEngine, IsNotSlurmNorALauncherWithinATask) {
  EXPECT_FALSE(task_of({}));
  EXPECT_FALSE(task_of({{"PMIX_NAMESPACE", "slurm.pmix.7.0"}, {"PMIX_RANK", "1"}}));
  EXPECT_FALSE(task_of({{"PMI_FD", "6"}, {"PMI_JOBID", "7.0"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}));
  EXPECT_FALSE(task_of({{"OMPI_COMM_WORLD_RANK", "2"}, {"TORCHELASTIC_RUN_ID", "none"}})) << "ddprun --imitate";
}

TEST(LaunchEngine, FluxSaysHowManyNodes) {
  const auto flux = [](const char* size) {
    return task_of({{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", size}, {"FLUX_JOB_NNODES", "3"}});
  };
  EXPECT_EQ(flux("3")->tasks_here, 1);
  EXPECT_EQ(flux("4")->tasks_here, 2) << "on one of them";
}

TEST(LaunchEngine, ReadsNumbersStrictly) {
  EXPECT_EQ(test::error_of([] { task_of({{"PALS_RANKID", "x"}}); })->code(), ErrorCode::invalid_argument);
}

TEST(LaunchEngine, KnowsWhatIsATasksOwn) {
  for (const char* name : {"FLUX_TASK_RANK", "PALS_RANKID", "JSM_NAMESPACE_LOCAL_RANK", "HYDI_CONTROL_FD"})
    EXPECT_TRUE(is_engine_identity(name)) << name;
  for (const char* name : {"FLUX_URI", "FLUX_JOB_ID", "PALS_APID", "PATH"})
    EXPECT_FALSE(is_engine_identity(name)) << name;
}

}  // namespace
}  // namespace ddp::base
