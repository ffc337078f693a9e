// Whose NCCL env and doctor judge: that of the Python in which ranks would run.
#include "command/judged_program.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "diagnostics/environment/nccl_file.hpp"
#include "unit/topology/fake_root.hpp"

namespace ddp::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;

/// An environment of Python.
class JudgedProgram : public ::testing::Test {
 protected:
  JudgedProgram() {
    root_.write("env/bin/python3", "");
    fs::permissions(root_.path() / "env/bin/python3", fs::perms::owner_all);
    root_.write(packages_ + "nvidia/nccl/lib/libnccl.so.2", "");
  }
  void add_torch() const { root_.write(packages_ + "torch/__init__.py", ""); }
  std::string in(const std::string& file) const { return (root_.path() / file).string(); }
  base::NcclSurroundings of(Variables variables, const std::string& program = {}) const {
    variables.emplace("HOME", in("home"));
    return surroundings_of_program(base::Environment{std::move(variables)}, program);
  }

  const topology::FakeRoot root_;
  const std::string packages_ = "env/lib/python3.12/site-packages/";
};

TEST_F(JudgedProgram, IsThePythonInPathIfThatHasPyTorch) {
  const Variables with_path{{"PATH", in("nowhere") + ":" + in("env/bin")}};
  EXPECT_EQ(of(with_path).program, base::NcclSurroundings::process().program) << "it has no PyTorch";
  add_torch();
  const auto surroundings = of(with_path);
  EXPECT_EQ(surroundings.program, in("env/bin/python3"));
  const auto nccl = diagnostics::find_nccl(surroundings);
  EXPECT_EQ(nccl.path, in(packages_ + "nvidia/nccl/lib/libnccl.so.2"));
  EXPECT_THAT(nccl.found, HasSubstr("packages of the Python that ddprun takes, " + in("env/bin/python3")));
}

TEST_F(JudgedProgram, IsPythonExecFirst) {
  add_torch();
  EXPECT_EQ(of({{"PATH", "/nowhere"}, {"PYTHON_EXEC", in("env/bin/python3")}}).program, in("env/bin/python3"));
}

TEST_F(JudgedProgram, IsTheLaunchersWhereThatIsAPython) {
  EXPECT_EQ(of({{"PATH", in("env/bin")}}, "python3").program, in("env/bin/python3")) << "with or without PyTorch";
  EXPECT_EQ(of({{"PATH", "/nowhere"}}, "/opt/bin/python3.9").program, "/opt/bin/python3.9");
  EXPECT_EQ(of({{"PATH", "/nowhere"}}, "/opt/train").program, "/opt/train");
  add_torch();
  EXPECT_EQ(of({{"PATH", in("env/bin")}}, "/opt/train.sh").program, in("env/bin/python3")) << "a script may start it";
}

TEST_F(JudgedProgram, AFolderOrAFileThatCannotRunIsNoPython) {
  add_torch();
  root_.folder("other/python3");
  root_.write("third/python3", "");
  const Variables path{{"PATH", in("other") + ":" + in("third") + ":.:" + in("env/bin")}};
  EXPECT_EQ(of(path).program, in("env/bin/python3"));
}

}  // namespace
}  // namespace ddp::tools
