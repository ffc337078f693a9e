// What srun --ddp says of launchers and of scripts that are no programs: a table of command lines.
#include "srun_side/command_line.hpp"

namespace ddp::srun_plugin {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> nothing_set(const char*) { return std::nullopt; }

std::vector<std::string> split_words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

struct LauncherCase {
  const char* line;
  const char* advice;  ///< null: it is no launcher
  bool hopeless = false;
};

TEST(ProgramCheck, LaunchersAreToldWhatToWrite) {
  for (const LauncherCase& each : {
           LauncherCase{"torchrun --nproc-per-node=2 train.py", "--ntasks-per-node=2 python train.py, or"},
           LauncherCase{"/venv/bin/torchrun --nproc_per_node 8 --nnodes 1 a/train.py --epochs 3",
                        "--ntasks-per-node=8 python a/train.py ..., or ddprun --nproc-per-node=8 a/train.py"},
           LauncherCase{"torchrun --nnodes=2 --nproc-per-node=2 train.py", "at its own 127.0.0.1", true},
           LauncherCase{"torchrun --nnodes 1:4 --rdzv-backend c10d train.py", "no --rdzv-endpoint", true},
           LauncherCase{"torchrun --nnodes=2 --rdzv_endpoint=n0:29500 train.py",
                        "--ntasks-per-node=RANKS python train.py"},
           LauncherCase{"torchrun --nnodes=2 --master_addr n0 train.py", "torchrun starts ranks of its own"},
           LauncherCase{"torchrun --nnodes=1:1 --nproc-per-node=gpu -m pack.train x",
                        "--ntasks-per-node=RANKS python -m pack.train ..."},
           LauncherCase{"python3.11 -u -m torch.distributed.run --nproc-per-node=4 t.py",
                        "--ntasks-per-node=4 python3.11 t.py"},
           LauncherCase{"python -mtorch.distributed.launch t.py", "python -m torch.distributed.launch starts ranks"},
           LauncherCase{"env A=1 B=2 torchrun t.py", "torchrun starts ranks"},
           LauncherCase{"accelerate launch --num_processes 8 t.py", "accelerate launch starts ranks"},
           LauncherCase{"python -m accelerate.commands.launch t.py", "python t.py"},
           LauncherCase{"deepspeed --num_gpus 4 t.py", "--ntasks-per-node=4 python t.py"},
           LauncherCase{"mpirun -np 4 ./a.out", "mpirun starts ranks of its own"},
           LauncherCase{"python train.py -m torch.distributed.run", nullptr},
           LauncherCase{"python -m train torch.distributed.run", nullptr},
           LauncherCase{"accelerate env", nullptr},
           LauncherCase{"./torchrun.sh", nullptr},
           LauncherCase{"train torchrun", nullptr},
           LauncherCase{"python -m", nullptr},
           LauncherCase{"env", nullptr},
           LauncherCase{"", nullptr},
       }) {
    const auto words = split_words(each.line);
    const auto advice = advise_on_launcher(words, &nothing_set);
    ASSERT_EQ(advice.has_value(), each.advice != nullptr) << each.line;
    if (!advice) continue;
    EXPECT_THAT(advice->text, HasSubstr(each.advice)) << each.line;
    EXPECT_EQ(advice->hopeless, each.hopeless) << each.line << ": " << advice->text;
  }
}

TEST(ProgramCheck, TorchrunsVariablesCount) {
  const auto words = split_words("torchrun --nnodes=2 train.py");
  const auto advice = advise_on_launcher(words, [](const char* name) {
    return std::string(name) == "PET_RDZV_ENDPOINT" ? std::optional<std::string>{"n0:1"} : std::nullopt;
  });
  ASSERT_TRUE(advice);
  EXPECT_FALSE(advice->hopeless);
}

struct ScriptCheck : ::testing::Test {
  ScriptCheck() {
    std::string name = (fs::temp_directory_path() / "script check-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp: " << name;
    folder_ = name;
  }
  ~ScriptCheck() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text, unsigned mode) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    ::chmod((folder_ / name).c_str(), mode);
  }
  std::string advice(const std::string& line) {
    return advise_on_script(split_words(line), folder_.string(), "/nowhere:" + (folder_ / "bin").string()).value_or("");
  }
  fs::path folder_;
};

TEST_F(ScriptCheck, WhatTheKernelWouldNotExecuteIsToldToThePrompt) {
  write("train.py", "print(1)\n", 0644);
  write("bare.py", "print(1)\n", 0755);
  write("good.py", "#!/usr/bin/env python\n", 0755);
  write("run.sh", "echo\n", 0600);
  write("bin/both.py", "#!/bin/sh\n", 0755);
  write("both.py", "print(1)\n", 0644);
  EXPECT_EQ(advice("train.py --epochs 3"),
            "train.py cannot be started: it is not executable; write srun --ddp ... python train.py ...");
  EXPECT_THAT(advice("./bare.py"), HasSubstr("does not begin with '#!'"));
  EXPECT_THAT(advice("run.sh"), HasSubstr("bash run.sh"));
  EXPECT_EQ(advice("good.py"), "");
  EXPECT_EQ(advice("both.py"), "") << "the PATH has an executable one";
  EXPECT_THAT(advice("./both.py"), HasSubstr("python ./both.py"));
  EXPECT_EQ(advice("elsewhere.py"), "") << "only the nodes may have it";
  EXPECT_EQ(advice(""), "");
}

}  // namespace
}  // namespace ddp::srun_plugin
