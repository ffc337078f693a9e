// The manual page and the completion come from the table of options, and the tools that read them accept them.
#include "command_line_support.hpp"
#include "pmix_server/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

std::string information(const char* option) {
  return std::get<Information>(parse_command_line(Words{option}, base::Environment{{}})).text;
}

struct WrittenPages : testing::Test {
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream{path} << text;
    return path;
  }
  /// Exit status and output of a shell command.
  static std::pair<int, std::string> shell(const std::string& command) {
    FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
    if (pipe == nullptr) return {-1, "popen"};
    std::string output;
    std::array<char, 4096> buffer;
    while (const std::size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe))
      output.append(buffer.data(), size);
    const int status = ::pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
  }
  static bool has(const std::string& program) { return shell("command -v " + program).first == 0; }
  /// What bash offers for the last of the words.
  std::string offered(const std::string& words) {
    const std::string script = write("ddprun.bash", information("--generate-bash-completion"));
    const auto [status, output] =
        shell("cd " + folder_.path() + " && bash -c 'source " + script + " && COMP_WORDS=(" + words +
              ") COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) && _ddprun && "
              "echo \"${COMPREPLY[*]}\"'");
    EXPECT_EQ(status, 0) << output;
    return output.substr(0, output.find('\n'));
  }
  ScratchDirectory folder_{testing::TempDir()};
};

TEST_F(WrittenPages, TheManualPageNamesOptionsAndTheirVariables) {
  const std::string page = information("--generate-man");
  for (const char* part : {".TH DDPRUN 1", ".SH NAME\nddprun \\- ", ".SS Rendezvous",
                           "\\fB\\-r\\fR, \\fB\\-\\-redirects\\fR \\fIWHICH\\fR", "Default in \\fBPET_REDIRECTS\\fR.",
                           "\\fBPET_NPROC_PER_NODE\\fR", "PYTHON_EXEC", "EXIT STATUS"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("PET_LOGS_SPECS")));
  EXPECT_THAT(page, Not(HasSubstr("PET_BIND")));
  EXPECT_THAT(page, Not(HasSubstr("generate")));
}

TEST_F(WrittenPages, GroffHasNothingToSayAboutTheManualPage) {
  if (!has("groff")) GTEST_SKIP() << "no groff";
  const std::string page = write("ddprun.1", information("--generate-man"));
  const auto [status, output] = shell("groff -man -ww -Tascii -z " + page);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(output, "");
  EXPECT_THAT(shell("groff -man -Tascii -P-c -P-b -P-u " + page).second, HasSubstr("--redirects WHICH"));
}

TEST_F(WrittenPages, BashOffersOptionsWordsAndFiles) {
  if (!has("bash")) GTEST_SKIP() << "no bash";
  write("train.py", "");
  EXPECT_EQ(offered("ddprun --nn"), "--nnodes");
  EXPECT_EQ(offered("ddprun -v --tee 3 --log-f"), "--log-format");
  EXPECT_EQ(offered("ddprun --bind \"\""), "numa core socket none");
  EXPECT_EQ(offered("ddprun --bind = s"), "socket") << "bash makes a word of the equals sign";
  EXPECT_EQ(offered("ddprun --bind ="), "numa core socket none");
  EXPECT_EQ(offered("ddprun --numa_binding core"), "core-complex");
  EXPECT_EQ(offered("ddprun --role tra"), "") << "a value that nobody knows";
  EXPECT_EQ(offered("ddprun --report-json tra"), "train.py");
  EXPECT_EQ(offered("ddprun -m --gpus = one trai"), "train.py");
  EXPECT_EQ(offered("ddprun train.py --nn"), "") << "the program's own options";
  EXPECT_EQ(offered("ddprun -- --nn"), "");
  EXPECT_EQ(offered("ddprun --generate"), "") << "hidden";
}

}  // namespace
}  // namespace ddp::launcher
