// Which words of a command line srun would take for its own: a table of command lines.
#include "srun_side/command_line.hpp"

namespace ddp::srun_plugin {
namespace {

/// "ddp", "cpus", "components" and "job", those that were found.
std::string found_in(const std::vector<std::string>& arguments) {
  const CommandLine found = read_command_line(arguments);
  std::string text;
  for (const auto& [is, name] : {std::pair{found.ddp, "ddp"}, std::pair{found.cpus_per_task, "cpus"},
                                 std::pair{found.components, "components"}, std::pair{found.job_id, "job"}}) {
    if (is) text += (text.empty() ? "" : " ") + std::string(name);
  }
  return text;
}

/// "0", "1", "k" for --no-kill, or nothing.
std::string end_in(const std::vector<std::string>& arguments) {
  const CommandLine found = read_command_line(arguments);
  return (found.kill_on_bad_exit ? std::to_string(*found.kill_on_bad_exit) : std::string()) +
         (found.no_kill ? "k" : "");
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

TEST(SrunCommandLineMpi, IsThatOfTheFirstComponent) {
  for (const auto& [line, mpi] : {std::pair{"srun --ddp --mpi=pmi2 a : --mpi=pmix b", "pmi2"},
                                  std::pair{"srun --mpi pmix -n2 a", "pmix"}, std::pair{"srun a --mpi=pmi2", ""}})
    EXPECT_EQ(read_command_line(words(line)).mpi, mpi) << line;
}

struct Case {
  const char* line;
  const char* found;
};

TEST(SrunCommandLineEnd, IsReadAsSrunReadsIt) {
  for (const Case& each :
       {Case{"srun --ddp p", ""}, Case{"srun -K --ddp p", "1"}, Case{"srun -K0 --ddp p", "0"},
        Case{"srun -lK1 --ddp p", "1"}, Case{"srun --kill-on-bad-exit --ddp p", "1"},
        Case{"srun --kill-on-bad-exit=0 --ddp p", "0"}, Case{"srun --kill=0 p", "0"}, Case{"srun -k --ddp p", "k"},
        Case{"srun --no-kill p", "k"}, Case{"srun --no-k p", "k"}, Case{"srun p -K0 -k", ""}}) {
    EXPECT_EQ(end_in(words(each.line)), each.found) << each.line;
  }
  EXPECT_EQ(found_in(words("srun -K 0 --ddp p")), "") << "0 is the program";
}

class SrunCommandLine : public ::testing::TestWithParam<Case> {};

TEST_P(SrunCommandLine, IsReadAsSrunReadsIt) {
  EXPECT_EQ(found_in(words(GetParam().line)), GetParam().found) << GetParam().line;
}

INSTANTIATE_TEST_SUITE_P(
    OwnOptions, SrunCommandLine,
    ::testing::Values(Case{"srun --ddp python train.py", "ddp"}, Case{"srun -N 4 --ddp python", "ddp"},
                      Case{"srun -N4 -n 8 --ddp python", "ddp"},
                      Case{"/usr/bin/srun --nodes=4 --ntasks 8 --ddp python", "ddp"},
                      Case{"srun --ddp-bind core --ddp python", "ddp"},
                      Case{"srun --ddp-bind=core --ddp-gpus one --ddp-backend gloo --ddp p", "ddp"},
                      Case{"srun --ddp-verbose --ddp p", "ddp"}, Case{"srun --ddp --ddp p", "ddp"},
                      Case{"srun -l -u --exclusive --ddp p", "ddp"}, Case{"srun --ddp", "ddp"}));

INSTANTIATE_TEST_SUITE_P(WithoutIt, SrunCommandLine,
                         ::testing::Values(Case{"srun", ""}, Case{"", ""}, Case{"--ddp", ""},
                                           Case{"srun -n2 hostname", ""}, Case{"srun --ddp-bind core python", ""},
                                           Case{"srun --ddp-bind=core --ddp-verbose python", ""},
                                           Case{"srun --ddp=1 python", ""}, Case{"srun --dd python", ""},
                                           Case{"srun -ddp python", ""}));

INSTANTIATE_TEST_SUITE_P(UsersProgram, SrunCommandLine,
                         ::testing::Values(Case{"srun python train.py --ddp", ""}, Case{"srun -n 2 python --ddp", ""},
                                           Case{"srun -n2 -- python --ddp", ""}, Case{"srun -- --ddp", ""},
                                           Case{"srun - --ddp", ""}, Case{"srun --mpi=pmix python --ddp -c 4", ""},
                                           Case{"srun --ddp -- python -c 4", "ddp"}));

INSTANTIATE_TEST_SUITE_P(ValuesOfOptions, SrunCommandLine,
                         ::testing::Values(Case{"srun -J --ddp python", ""}, Case{"srun --job-name --ddp python", ""},
                                           Case{"srun --job-name=x --ddp python", "ddp"},
                                           Case{"srun -Jx --ddp python", "ddp"}, Case{"srun -lJ --ddp python", ""},
                                           Case{"srun -lJ x --ddp python", "ddp"},
                                           Case{"srun --comment -n --ddp python", "ddp"},
                                           Case{"srun -w n1,n2 -x n3 -t 10 -o out -e err --ddp p", "ddp"},
                                           Case{"srun -J -- --ddp p", "ddp"}));

// An option whose value is optional takes it after '=' only.
INSTANTIATE_TEST_SUITE_P(OptionalValues, SrunCommandLine,
                         ::testing::Values(Case{"srun --bcast --ddp p", "ddp"},
                                           Case{"srun --bcast=/tmp/x --ddp p", "ddp"},
                                           Case{"srun --exclusive=user --ddp p", "ddp"},
                                           Case{"srun --kill-on-bad-exit --ddp p", "ddp"},
                                           Case{"srun -K1 -I5 --nice --compress --propagate --ddp p", "ddp"}));

INSTANTIATE_TEST_SUITE_P(Abbreviations, SrunCommandLine,
                         ::testing::Values(Case{"srun --job-n x --ddp p", "ddp"}, Case{"srun --job-n --ddp p", ""},
                                           Case{"srun --nodel n1 --ddp p", "ddp"}, Case{"srun --nodel --ddp p", ""},
                                           Case{"srun --bcast-e --ddp p", ""},
                                           Case{"srun --ddp-ba gloo --ddp p", "ddp"},
                                           Case{"srun --cpus-per-t 4 --ddp p", "ddp cpus"},
                                           Case{"srun --het-g 0,1 --ddp p", "ddp components"}));

INSTANTIATE_TEST_SUITE_P(CpusPerTask, SrunCommandLine,
                         ::testing::Values(Case{"srun -c 4 --ddp p", "ddp cpus"}, Case{"srun -c4 p", "cpus"},
                                           Case{"srun -lc4 --ddp p", "ddp cpus"},
                                           Case{"srun -lc 4 --ddp p", "ddp cpus"},
                                           Case{"srun --cpus-per-task 4 --ddp p", "ddp cpus"},
                                           Case{"srun --cpus-per-task=4 --ddp p", "ddp cpus"},
                                           Case{"srun -Jc --ddp p", "ddp"}, Case{"srun -J -c --ddp p", "ddp"},
                                           Case{"srun --cpus-per-gpu 4 --ddp p", "ddp"},
                                           Case{"srun --ddp p -c 4", "ddp"}));

INSTANTIATE_TEST_SUITE_P(
    Components, SrunCommandLine,
    ::testing::Values(
        Case{"srun -n1 --ddp a : -n2 b", "ddp components"}, Case{"srun -n1 a : -n2 --ddp b", "components"},
        Case{"srun --het-group=0,1 --ddp p", "ddp components"}, Case{"srun --het-group 0-1 --ddp p", "ddp components"},
        Case{"srun --het-group=1 --ddp p", "ddp"}, Case{"srun --het-group -- --ddp p", "ddp"},
        Case{"srun --het-group 1 --ddp -w n0,n1 p", "ddp"}, Case{"srun --ddp -n2 : -n1 ./a", "ddp components"},
        Case{"srun --pack-group 0,1 --ddp p", "ddp components"},
        Case{"srun --jobid 7 -n1 --ddp a : b", "ddp components job"}, Case{"srun --jobid=7 --ddp p", "ddp job"},
        Case{"srun --ddp p --jobid=7", "ddp"}, Case{"srun --ddp p a:b :c", "ddp"}, Case{"srun -J : --ddp p", "ddp"}));

// Of other plugins nothing is known: taken to have no value.
INSTANTIATE_TEST_SUITE_P(UnknownOptions, SrunCommandLine,
                         ::testing::Values(Case{"srun --container-image=x.sqsh --ddp p", "ddp"},
                                           Case{"srun --no-container-mount-home --ddp p", "ddp"},
                                           Case{"srun --ddp --container-image x.sqsh p", "ddp"},
                                           Case{"srun --container-image x.sqsh --ddp p", ""}));

TEST(SrunArguments, DetailsAndSallocsShellAreFound) {
  EXPECT_EQ(read_command_line(words("srun --ddp-verbose p")).ddp_detail, "--ddp-verbose");
  EXPECT_EQ(read_command_line(words("srun --ddp-bind core --ddp-gpus=one p")).ddp_detail, "--ddp-bind, --ddp-gpus");
  EXPECT_EQ(read_command_line(words("srun --ddp p --ddp-verbose")).ddp_detail, "");
  EXPECT_TRUE(read_command_line(words("srun --interactive --preserve-env --pty bash")).interactive);
  EXPECT_FALSE(read_command_line(words("srun --ddp python --interactive")).interactive);
}

TEST(SrunArguments, WhereTasksSeeAnotherFolderIsFound) {
  for (const char* line : {"srun -D /x --ddp p", "srun --chdir=/x p", "srun --container-image=x p", "srun --chd /x p"})
    EXPECT_TRUE(read_command_line(words(line)).other_files) << line;
  for (const char* line : {"srun --ddp p -D /x", "srun -d x p"})
    EXPECT_FALSE(read_command_line(words(line)).other_files) << line;
  EXPECT_EQ(read_command_line(words("srun --ddp -n2 python -u t.py : -n1 x")).command,
            (std::vector<std::string>{"python", "-u", "t.py"}));
}

TEST(SrunArguments, EmptyWordsAreNoOptions) {
  EXPECT_EQ(found_in({"srun", "", "--ddp"}), "");
  EXPECT_EQ(found_in({"srun", "-J", "", "--ddp"}), "ddp");
  EXPECT_EQ(found_in({}), "");
}

TEST(SrunArguments, OwnOnesAreThoseOfThisProcess) {
  ASSERT_FALSE(own_arguments().empty());
  EXPECT_NE(own_arguments().front().find("unit_srun_plugin"), std::string::npos) << own_arguments().front();
}

TEST(CommandLine, ProgramIsThatOfTheFirstComponent) {
  EXPECT_EQ(read_command_line(words("srun --ddp -n 2 ./train --ddp-event-log x")).program, "./train");
  EXPECT_EQ(read_command_line(words("srun --ddp --ddp-event-log x --ddp-metrics -- train y")).program, "train");
  EXPECT_EQ(read_command_line(words("srun -n1 a b : -n2 c")).program, "a");
  EXPECT_EQ(read_command_line(words("srun --ddp")).program, "");
}

}  // namespace
}  // namespace ddp::srun_plugin
