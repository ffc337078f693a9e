// ddp-step witness: what it makes of the plugin's line, and that its end waits for nothing.
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "base/byte_stream.hpp"
#include "ddp_step_fixture.hpp"
#include "support/checkout.hpp"

namespace ddp::srun_plugin::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

DdpStepClient start_step(const std::string& command, std::vector<std::string> environment = {}) {
  return DdpStepClient(ddp::test::built_program("ddp-step"), std::vector{command}, environment);
}

/// What a witness answers to the plugin's line.
std::string answer_to(const std::string& line, const std::vector<std::string>& environment = {}) {
  DdpStepClient witness = start_step("witness", environment);
  witness.send(base::to_bytes(line + "\n"), patience());
  std::string answer = witness.read_line(patience());
  witness.finish(patience());
  return answer;
}

class WitnessTest : public StepProgramTest {
 protected:
  WitnessTest() : store_(start_step("store")) {
    store_.send(base::to_bytes(kKey + "\n"), patience());
    const std::string line = store_.read_line(patience());
    port_ = line.substr(line.rfind(' ') + 1);
  }

  /// As node_questions.cpp writes it.
  std::string order(const std::string& metrics = "none 127.0.0.1",
                    const std::string& program = "train.py --lr 1") const {
    return "127.0.0.1 " + port_ + " " + kKey + " n1 n1 1 0 0 0 10 0 17.0 1 1 " + metrics + " 0 " + program;
  }

  /// The witness that has the folder in its environment; 0: there is none.
  pid_t witness() const {
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string environment = read_file(entry.path() / "environ");
      if (environment.find(folder_.string()) == std::string::npos) continue;
      if (read_file(entry.path() / "cmdline").find("witness") != std::string::npos)
        return std::stoi(entry.path().filename());
    }
    return 0;
  }

  DdpStepClient store_;
  std::string port_;
};

TEST_F(WitnessTest, KnowsTheNodeAndEnds) {
  const std::string folder = "TMPDIR=" + folder_.string();
  EXPECT_THAT(answer_to(order(), {folder}), StartsWith("ddp-step 1 known "));
  store_.close_input();
  EXPECT_TRUE(eventually([&] { return witness() == 0; }));
}

TEST_F(WitnessTest, AProgramMayHaveNoName) {
  EXPECT_THAT(answer_to(order("none 127.0.0.1", "")), StartsWith("ddp-step 1 known "));
}

TEST_F(WitnessTest, RefusesALineWhoseFieldsAreNotThere) {
  for (const std::string& wrong :
       {std::string("127.0.0.1"), std::string(" "), std::string(300, ' '), order("none "), order("none"),
        order(" 127.0.0.1", "5 train.py"), order("70000 127.0.0.1"), order("12x 127.0.0.1"), order("-1 127.0.0.1"),
        order().replace(0, 9, ""), "127.0.0.1 99999" + order().substr(order().find(' ', 10))}) {
    EXPECT_THAT(answer_to(wrong), AllOf(StartsWith("error "), HasSubstr("what the plugin says of the step"))) << wrong;
  }
}

#ifndef DDP_SANITIZED  // which must come before the preloaded library
TEST_F(WitnessTest, AFolderThatDoesNotAnswerDoesNotKeepIt) {
  const std::string dead = folder_.string();
  EXPECT_THAT(answer_to(order(), {"TMPDIR=" + dead, "DEAD_FOLDER=" + dead, "LD_PRELOAD=" DEAD_FOLDER_LIBRARY}),
              StartsWith("ddp-step 1 known "));
  store_.close_input();
  EXPECT_TRUE(eventually([&] { return witness() == 0; })) << "Slurm would drain the node: kill task failed";
}
#endif

}  // namespace
}  // namespace ddp::srun_plugin::test
