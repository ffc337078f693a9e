// -H, --hostfile and ssh's options: what they mean together, and the names that other launchers use.
#include "command_line_support.hpp"

namespace ddp::launcher {
namespace {

struct HostOptionsTest : testing::Test {
  std::string file(const std::string& text) {
    path_ = testing::TempDir() + "host_options_" + std::to_string(::getpid());
    std::ofstream{path_} << text;
    return path_;
  }
  void TearDown() override {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

 private:
  std::string path_;
};

TEST_F(HostOptionsTest, AListAndAFileNameTheHosts) {
  EXPECT_THAT(parse({"train.py"}).hosts, IsEmpty());
  for (const Words& words :
       {Words{"-H", "n0:2,n1:2", "train.py"}, Words{"--host=n0:2,n1:2", "train.py"},
        Words{"--hosts", "n[0-1]:2", "train.py"}, Words{"--hostfile", file("n0 slots=2\nn1 slots=2\n"), "train.py"}}) {
    EXPECT_THAT(parse(words).hosts, ElementsAre(HostEntry{"n0", 2, 0}, HostEntry{"n1", 2, 0})) << words[1];
  }
}

TEST_F(HostOptionsTest, NumbersOfTheListAndOfTheNodeMustAgree) {
  EXPECT_EQ(parse({"-H", "n0,n1", "--nproc-per-node", "gpu", "x"}).hosts[0].ranks, 0);
  EXPECT_EQ(parse({"-H", "n0:2,n1:2", "--nproc-per-node", "2", "x"}).hosts[0].ranks, 2);
  EXPECT_THAT(complaint({"-H", "n0:2,n1:3", "--nproc-per-node", "2", "x"}),
              AllOf(HasSubstr("--nproc-per-node contradicts"), HasSubstr("3 ranks to 'n1'")));
  EXPECT_THAT(complaint({"-H", "n0:2", "--nproc-per-node", "gpu", "x"}), HasSubstr("contradicts"));
  EXPECT_EQ(parse({"-H", "n0:2", "x"}, {{"PET_NPROC_PER_NODE", "8"}}).hosts[0].ranks, 2);
  EXPECT_THAT(complaint({"--hostfile", file("n0 max_slots=2"), "--nproc-per-node", "3", "x"}),
              HasSubstr("max_slots=2"));
}

TEST_F(HostOptionsTest, TheRanksOfTheJobAreSpreadOverItsNodes) {
  EXPECT_EQ(parse({"-n", "4", "x"}).nproc.number, 4);
  EXPECT_EQ(parse({"-np", "4", "x", "-np", "2"}).nproc.number, 4);
  for (const char* word : {"-np4", "-np=4", "-n4", "--num-proc=4"})
    EXPECT_EQ(parse({word, "x"}).nproc.number, 4) << word;
  EXPECT_EQ(parse({"--num-proc=8", "--nnodes", "2", "x"}).nproc.number, 4);
  EXPECT_EQ(parse({"-n", "8", "x"}, {{"SLURM_JOB_NUM_NODES", "4"}}).nproc.number, 2);
  EXPECT_EQ(parse({"-n", "8", "--standalone", "x"}, {{"SLURM_JOB_NUM_NODES", "4"}}).nproc.number, 8);
  EXPECT_THAT(parse({"-n", "3", "-H", "n0:2,n1:2,n2:2", "x"}).hosts,
              ElementsAre(HostEntry{"n0", 2, 0}, HostEntry{"n1", 1, 0}));
  EXPECT_THAT(parse({"-n", "3", "-H", "n0,n1", "x"}).hosts, ElementsAre(HostEntry{"n0", 2, 0}, HostEntry{"n1", 1, 0}));
  EXPECT_THAT(parse({"-n", "1", "-H", "n0,n1", "x"}).hosts, ElementsAre(HostEntry{"n0", 1, 0}));
  EXPECT_THAT(complaint({"-n", "5", "-H", "n0:2,n1:2", "x"}), HasSubstr("more than the 4"));
  EXPECT_THAT(complaint({"-n", "4", "--nproc-per-node", "2", "x"}), HasSubstr("drop one of them"));
  EXPECT_THAT(complaint({"-n", "5", "--nnodes", "2", "x"}), HasSubstr("evenly over 2 nodes"));
  EXPECT_THAT(complaint({"-n", "4", "--nnodes", "1:2", "x"}), HasSubstr("fixed number of nodes"));
  EXPECT_THAT(complaint({"-n", "0", "x"}), HasSubstr("-n"));
}

TEST_F(HostOptionsTest, WhatProgramsOfOtherLaunchersFind) {
  EXPECT_EQ(parse({"--as", "horovod,mpi4py", "x"}).as, "horovod,mpi4py");
  EXPECT_THAT(complaint({"--as", "horovod,mpi", "x"}), HasSubstr("mpi"));
  const LaunchOptions both = parse({"--imitate", "mpirun,horovodrun", "x"});
  EXPECT_TRUE(both.imitates_openmpi && both.imitates_horovod);
  EXPECT_FALSE(parse({"--imitate", "mpirun", "x"}).imitates_horovod);
  EXPECT_THAT(complaint({"--imitate", "srun", "x"}), HasSubstr("srun"));
}

TEST_F(HostOptionsTest, SshsCommandAndPort) {
  const LaunchOptions options = parse({"-H", "n0", "--ssh-command", "ssh -i 'a b'", "--ssh-port", "2222", "x"});
  EXPECT_THAT(options.ssh_command, ElementsAre("ssh", "-i", "a b"));
  EXPECT_EQ(options.ssh_port, 2222);
  EXPECT_THAT(complaint({"-H", "n0", "--ssh-port", "0", "x"}), HasSubstr("--ssh-port"));
  EXPECT_THAT(complaint({"--ssh-port", "22", "x"}), HasSubstr("add -H or --hostfile"));
}

TEST_F(HostOptionsTest, AnotherCommandThanSsh) {
  EXPECT_THAT(parse({"-H", "n0", "--agent-command", "kubectl exec -i {host} --", "x"}).agent_command,
              ElementsAre("kubectl", "exec", "-i", "{host}", "--"));
  const auto refused = [this](const char* command) { return complaint({"-H", "n0", "--agent-command", command, "x"}); };
  EXPECT_THAT(refused("rsh {hosts}"), HasSubstr("the places are {host} and {command}"));
  EXPECT_THAT(refused("{host} x"), HasSubstr("begin with one"));
  EXPECT_THAT(refused("rsh {host}{host}"), HasSubstr("twice"));
  EXPECT_THAT(refused("sh -c {command} {command}"), HasSubstr("twice"));
  EXPECT_THAT(refused(""), HasSubstr("--agent-command"));
  EXPECT_THAT(complaint({"-H", "n0", "--agent-command", "rsh", "--ssh-port", "22", "x"}), HasSubstr("is for ssh"));
  EXPECT_THAT(complaint({"--agent-command", "rsh", "x"}), HasSubstr("add -H or --hostfile"));
}

TEST_F(HostOptionsTest, ContradictionsAreRefused) {
  EXPECT_THAT(complaint({"-H", "n0", "--hostfile", file("n1"), "x"}), HasSubstr("give one of them"));
  EXPECT_THAT(complaint({"-H", "n0", "--standalone", "x"}), HasSubstr("--standalone"));
  EXPECT_THAT(complaint({"-H", "n0", "--rdzv-endpoint", "n0", "x"}), HasSubstr("--rdzv-endpoint"));
  EXPECT_THAT(complaint({"-H", "n0,n1", "--stdin", "all", "x"}), HasSubstr("cannot all read one standard input"));
  EXPECT_THAT(complaint({"--hostfile", "/no/such", "x"}), HasSubstr("'/no/such' cannot be read: No such file"));
  EXPECT_THAT(complaint({"--hostfile", "/", "x"}), HasSubstr("cannot be read"));
  EXPECT_THAT(complaint({"--hostfile", file("# none\n"), "x"}), HasSubstr("names no host"));
}

TEST_F(HostOptionsTest, AnAgentTakesItsPartAndReadsNoFile) {
  const Words words{"--hostfile", "/no/such", "--local-addr", "n9", "x"};
  const LaunchOptions options = parse(words, {{"DDPRUN_AGENT_HOST", "3:5"}});
  EXPECT_THAT(options.hosts, IsEmpty());
  EXPECT_EQ(options.nproc.number, 5);
  EXPECT_EQ(options.local_addr, "");
  EXPECT_EQ(parse(words, {{"DDPRUN_AGENT_HOST", "3:5:here"}}).local_addr, "n9");
  EXPECT_EQ(parse({"--nproc-per-node", "7", "x"}, {{"DDPRUN_AGENT_HOST", "3:0"}}).nproc.number, 7);
  EXPECT_THAT(complaint(words, {{"DDPRUN_AGENT_HOST", "3"}}), HasSubstr("unset it"));
}

TEST_F(HostOptionsTest, NamesOfOtherLaunchersGetAPointer) {
  for (const char* name : {"--num_processes", "--ntasks=4", "-npernode"}) {
    EXPECT_THAT(complaint({name, "4", "x"}), AllOf(HasSubstr("unknown option"), HasSubstr("--nproc-per-node"))) << name;
  }
  EXPECT_THAT(complaint({"-N", "2", "x"}), HasSubstr("--nnodes"));
  EXPECT_THAT(complaint({"-hostfile", "f", "x"}), HasSubstr("--hostfile"));
  EXPECT_THAT(complaint({"-map-by", "numa", "x"}), HasSubstr("--bind"));
  EXPECT_THAT(complaint({"-x", "PATH", "x"}), HasSubstr("environment"));
  EXPECT_THAT(complaint({"-p", "22", "x"}), HasSubstr("--ssh-port"));
}

}  // namespace

}  // namespace ddp::launcher
