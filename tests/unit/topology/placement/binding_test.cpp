// Binding real processes, in children so that the test's own mask stays: what is set is read back, threads follow, and
// a mask that the kernel narrows is reported.
#include <sched.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "support/error_of.hpp"
#include "topology/placement/rank_resources.hpp"

namespace ddp {
namespace {

/// Runs @p check in a child process; true if it returned true.
template <class Check>
bool in_child(Check check) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = false;
    try {
      good = check();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

CpuSet one_cpu() { return CpuSet({Binding::current().cpus.first()}); }

TEST(Binding, IsWhatTheKernelSaysAfterwards) {
  EXPECT_TRUE(in_child([] {
    const CpuSet cpus = one_cpu();
    const auto remarks = Binding{.cpus = cpus, .preferred_memory = -1}.apply();
    return remarks.empty() && Binding::current().cpus == cpus;
  }));
}

TEST(Binding, ReachesThreadsThatExistAndThatComeLater) {
  EXPECT_TRUE(in_child([] {
    std::atomic<bool> bound{false};
    CpuSet early;
    std::thread thread{[&] {
      while (!bound) std::this_thread::yield();
      early = Binding::current().cpus;
    }};
    const CpuSet cpus = one_cpu();
    Binding{.cpus = cpus, .preferred_memory = -1}.apply();
    bound = true;
    thread.join();
    CpuSet late;
    std::thread{[&] { late = Binding::current().cpus; }}.join();
    return early == cpus && late == cpus;
  }));
}

TEST(Binding, IsInheritedByPrograms) {
  EXPECT_TRUE(in_child([] {
    const CpuSet cpus = one_cpu();
    Binding{.cpus = cpus, .preferred_memory = -1}.apply();
    const std::string command = "grep -q '^Cpus_allowed_list:[[:space:]]*" + cpus.to_string() + "$' /proc/self/status";
    return std::system(command.c_str()) == 0;
  }));
}

TEST(Binding, ANarrowerMaskOfTheKernelIsReported) {
  EXPECT_TRUE(in_child([] {
    CpuSet wanted = one_cpu();
    const CpuSet there = wanted;
    wanted.insert(4000);  // no machine of ours has it
    const auto remarks = Binding{.cpus = wanted, .preferred_memory = -1}.apply();
    return remarks.size() == 1 && remarks[0].find("granted " + there.to_string()) != std::string::npos &&
           Binding::current().cpus == there;
  }));
}

TEST(Binding, WhatCannotBeIsAnError) {
  const Error error =
      ddp::test::thrown_by([&] { Binding{.cpus = CpuSet::parse("4000"), .preferred_memory = -1}.apply(); });
  EXPECT_THAT(error.what(), testing::HasSubstr("EINVAL"));
  EXPECT_THROW((Binding{.preferred_memory = -1}.apply()), Error);
}

TEST(Binding, MemoryPolicyIsPreferredLocal) {
  EXPECT_TRUE(in_child([] {
    const auto remarks = Binding{.cpus = Binding::current().cpus, .preferred_memory = 0}.apply();
    // A container may forbid it; then it must be said.
    return remarks.empty() ? Binding::current().preferred_memory == 0
                           : remarks[0].find("NUMA node 0") != std::string::npos;
  }));
}

TEST(Binding, PrefersTheMemoryOfItsOneNumaNode) {
  const Topology topology = Topology::synthetic("pack:1 numa:2 core:2 pu:1");
  Placement placement;
  placement.cpus = CpuSet::parse("2-3");
  EXPECT_EQ(Binding::from(topology, placement), (Binding{.cpus = placement.cpus, .preferred_memory = 1}));
  placement.cpus = CpuSet::parse("1-2");
  EXPECT_EQ(Binding::from(topology, placement).preferred_memory, -1) << "of two nodes: where each thread runs";
}

TEST(AffinityMask, WorksBetweenForkAndExec) {
  const CpuSet cpus = one_cpu();
  const topology::AffinityMask mask{{.cpus = cpus, .preferred_memory = -1}};
  EXPECT_TRUE(in_child([&] { return mask.bind(0) && topology::affinity_of(0) == cpus; }));
  EXPECT_TRUE(in_child([&] { return mask.prefer_memory(); }));
}

}  // namespace
}  // namespace ddp
