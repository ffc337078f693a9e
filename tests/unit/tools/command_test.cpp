// Whatever cannot be written to standard output is an error.
#include <csignal>

#include "base/unique_fd.hpp"
#include "command/job_nodes.hpp"
#include "command/job_surroundings.hpp"
#include "command/output.hpp"
#include "diagnostics/environment/nccl_file.hpp"
#include "env/dump_file.hpp"
#include "unit/tools/sample_reports.hpp"
#include "unit/topology/fake_root.hpp"

namespace ddp::tools {
namespace {

/// Runs @p action with standard output at @p fd.
template <class Action>
std::optional<Error> error_with_stdout_at(int fd, Action action) {
  const base::UniqueFd saved{::dup(STDOUT_FILENO)};
  EXPECT_GE(::dup2(fd, STDOUT_FILENO), 0);
  auto error = test::error_of(action);
  EXPECT_GE(::dup2(saved.get(), STDOUT_FILENO), 0);
  return error;
}

TEST(Output, StandardOutputThatIsFullOrClosed) {
  const base::UniqueFd full{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
  const auto no_space = error_with_stdout_at(full.get(), [] { write_standard_output("x"); });
  ASSERT_TRUE(no_space);
  EXPECT_THAT(no_space->what(), HasSubstr("ENOSPC"));

  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[0]);
  const base::UniqueFd writing{ends[1]};
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  const auto closed = error_with_stdout_at(writing.get(), [] { write_standard_output("x"); });
  std::signal(SIGPIPE, before);
  ASSERT_TRUE(closed);
  EXPECT_THAT(closed->what(), HasSubstr("EPIPE"));
}

}  // namespace

// Whose NCCL env and doctor judge: that of the Python in which ranks would run.

namespace {

namespace fs = std::filesystem;
using Variables = std::map<std::string, std::string, std::less<>>;

/// An environment of Python.
struct JudgedProgram : ::testing::Test {
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

// Messages of hosts in short lines, which arrive mixed, or not at all.

namespace {

std::vector<std::string> printed_by(const std::string& host) {
  const Bytes message(5000, static_cast<std::byte>(host.back()));
  std::vector<std::string> lines;
  std::istringstream text(helper_lines(host, message));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

TEST(HelperLines, OfSeveralHostsMayBeMixed) {
  const auto first = printed_by("n0");
  const auto second = printed_by("n1");
  ASSERT_GT(first.size(), 10U);
  HelperLines reader;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_LE(first[i].size(), 1000U);
    reader.add(first[i]);
    reader.add("srun: something else");
    reader.add(second[i]);
  }
  std::vector<std::string> notes;
  const auto found = reader.take(notes);
  EXPECT_THAT(notes, IsEmpty());
  EXPECT_THAT(found, ElementsAre(Bytes(5000, std::byte{'0'}), Bytes(5000, std::byte{'1'})));
}

TEST(HelperLines, AHostWithALineLostOrTornIsNoted) {
  auto torn = printed_by("n0");
  const auto whole = printed_by("n1");
  HelperLines reader;
  for (std::size_t i = 0; i < torn.size(); ++i) {
    if (i != 3) reader.add(torn[i]);
    reader.add(whole[i]);
  }
  std::vector<std::string> notes;
  EXPECT_THAT(reader.take(notes), SizeIs(1));
  EXPECT_THAT(notes, ElementsAre(HasSubstr("of n0:")));
  notes.clear();
  torn.back().resize(torn.back().size() - 1);
  for (const std::string& line : torn) reader.add(line);
  EXPECT_THAT(reader.take(notes), IsEmpty());
  EXPECT_THAT(notes, SizeIs(1));
}

}  // namespace

}  // namespace ddp::tools

namespace ddp::tools::env {

// What `ddp-info env --diff` shows, and what it leaves out.

namespace {

/// A variable of which rank 0 has the first value, rank 1 the second, and so on.
EnvironmentReport::Variable each_its_own(const std::string& name, const std::vector<std::string>& values) {
  EnvironmentReport::Variable variable{.name = name};
  for (int rank = 0; const std::string& value : values) {
    variable.values.push_back({.value = value, .origin = "environment", .ranks = {rank++}});
  }
  return variable;
}

EnvironmentReport two_ranks(const std::vector<EnvironmentReport::Variable>& variables) {
  return {.hosts = {"n0", "n1"}, .variables = variables};
}

TEST(DumpDiff, ValuesThatDifferFromRankToRankAreCompared) {
  EXPECT_EQ(format_diff(two_ranks({each_its_own("NCCL_DEBUG", {"INFO", "WARN"})}),
                        two_ranks({each_its_own("NCCL_DEBUG", {"TRACE", "WARN"})})),
            "- NCCL_DEBUG=INFO (rank 0) [environment]\n+ NCCL_DEBUG=TRACE (rank 0) [environment]\n");
}

TEST(DumpDiff, ARankThatAVariableOfNcclChoosesIsCompared) {
  EXPECT_EQ(
      format_diff(two_ranks({}), two_ranks({each_its_own("NCCL_TOPO_DUMP_FILE_RANK", {"1", "1"})})),
      "+ NCCL_TOPO_DUMP_FILE_RANK=1 (rank 0) [environment]\n+ NCCL_TOPO_DUMP_FILE_RANK=1 (rank 1) [environment]\n");
}

TEST(DumpDiff, WhatLaunchersGiveEachJobAnewIsLeftOut) {
  const auto of_all = [](const char* name, const std::string& value) {
    return two_ranks({each_its_own(name, {value, value})});
  };
  for (const char* name : {"SLURM_JOB_ID", "PMIX_NAMESPACE", "PMI_JOBID", "OMPI_MCA_orte_precondition_transports"}) {
    EXPECT_EQ(format_diff(of_all(name, "17-0"), of_all(name, "18-0")), "no differences\n") << name;
  }
  EXPECT_NE(format_diff(of_all("OMPI_MCA_pml", "ucx"), of_all("OMPI_MCA_pml", "ob1")), "no differences\n");
}

TEST(DumpDiff, NumbersOfRanksAreLeftOut) {
  const auto numbers = [](const char* name) { return two_ranks({each_its_own(name, {"0", "1"})}); };
  for (const char* name : {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "ROCR_VISIBLE_DEVICES"}) {
    EXPECT_EQ(format_diff(numbers(name), two_ranks({})), "no differences\n") << name;
  }
  EXPECT_EQ(format_diff(two_ranks({each_its_own("LOCAL_RANK", {"0", "0"})}), two_ranks({})), "no differences\n");
}

}  // namespace

}  // namespace ddp::tools::env
