// Two ddpruns in one allocation, seen by the second one.
#include "placement/neighbours.hpp"

#include "unit/topology/fake_root.hpp"

namespace ddp::launcher {
namespace {

/// A made-up /proc.
struct Processes : ::testing::Test {
  void put(int pid, int parent, const std::string& cpus, const std::string& variables) const {
    const std::string folder = "proc/" + std::to_string(pid) + "/";
    root_.write(folder + "stat", std::to_string(pid) + " (train) S " + std::to_string(parent) +
                                     " 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0");
    root_.write(folder + "status", "Name:\ttrain\nCpus_allowed_list:\t" + cpus);
    std::string block;
    for (const char letter : variables) block += letter == ' ' ? '\0' : letter;
    root_.write(folder + "environ", block);
  }
  std::vector<int> found(const base::Environment& environment, int self = 50) const {
    std::vector<int> pids;
    for (const auto& rank : read_neighbours((root_.path() / "proc").string(), environment, self))
      pids.push_back(rank.pid);
    return pids;
  }

  const topology::FakeRoot root_;
  const base::Environment in_job_{{{"SLURM_JOB_ID", "17"}}};
};

TEST_F(Processes, RanksOfTheSameAllocationAreFound) {
  put(50, 1, "0-7", "SLURM_JOB_ID=17 ");
  put(60, 1, "0-3", "DDPRUN_SLURM_JOB=17 RANK=0 ");
  put(61, 1, "4-7", "DDPRUN_SLURM_JOB=17 RANK=1 ");
  put(62, 1, "0-3", "DDPRUN_SLURM_JOB=18 RANK=0 ");
  put(63, 1, "0-3", "SLURM_JOB_ID=17 RANK=0 ");
  put(64, 1, "0-3", "");
  EXPECT_THAT(found(in_job_), ElementsAre(60, 61));
  EXPECT_THAT(found(base::Environment{{}}), ElementsAre()) << "outside Slurm, that is everybody's own affair";
}

TEST_F(Processes, ARankInWhichDdprunRunsIsNoNeighbour) {
  put(40, 1, "0-7", "DDPRUN_SLURM_JOB=17 RANK=0 ");
  put(50, 40, "0-7", "DDPRUN_SLURM_JOB=17 RANK=0 ");
  put(60, 1, "0-3", "DDPRUN_SLURM_JOB=17 RANK=0 ");
  EXPECT_THAT(found(in_job_), ElementsAre(60));
}

TEST_F(Processes, TasksOfSrunsPluginAreFoundUnlessTheyAreOfTheSameStep) {
  put(60, 1, "0-3", "SLURM_DDP_SETTINGS=x SLURM_JOB_ID=17 SLURM_STEP_ID=3 ");
  put(61, 1, "0-3", "SLURM_DDP_SETTINGS=x SLURM_JOB_ID=17 SLURM_STEP_ID=4 ");
  EXPECT_THAT(found(base::Environment{{{"SLURM_JOB_ID", "17"}, {"SLURM_STEP_ID", "4"}}}), ElementsAre(60));
}

std::vector<topology::RankPlan> bound_to(const std::vector<std::string>& masks) {
  std::vector<topology::RankPlan> plans;
  for (const std::string& mask : masks)
    plans.push_back({.binding = Binding{.cpus = CpuSet::parse(mask), .preferred_memory = -1}});
  return plans;
}

TEST(SharedCores, AreReportedOnce) {
  const CpuSet allowed = CpuSet::parse("0-7");
  const auto plans = bound_to({"0-1", "2-3"});
  EXPECT_THAT(shared_cores_warning(plans, allowed, {{60, CpuSet::parse("1-2")}, {61, CpuSet::parse("3")}}),
              AllOf(HasSubstr("process 60"), HasSubstr("same processors, 1-3:"), HasSubstr("--exact")));
  EXPECT_EQ(shared_cores_warning(plans, allowed, {}), "");
  EXPECT_EQ(shared_cores_warning(plans, allowed, {{60, CpuSet::parse("4-7")}}), "");
  EXPECT_EQ(shared_cores_warning(plans, allowed, {{60, CpuSet::parse("0-7")}}), "") << "it is not bound";
  auto unbound = plans;
  for (auto& plan : unbound) plan.binding.reset();
  EXPECT_EQ(shared_cores_warning(unbound, allowed, {{60, CpuSet::parse("1-2")}}), "");
}

}  // namespace
}  // namespace ddp::launcher
