// What each rank executes follows from the files themselves: real programs, scripts and interpreters.
#include "options/worker_command.hpp"
#include "outcome/exit_error.hpp"
#include "pmix_server/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

using Words = std::vector<std::string>;

struct WorkerCommands : testing::Test {
  WorkerCommands() {
    std::filesystem::create_directory(folder_.path() + "/bin");
    python_ = make_file("bin/python3", "#!/bin/sh\n", 0755);
    std::filesystem::current_path(folder_.path());
  }
  ~WorkerCommands() override { std::filesystem::current_path(before_); }

  std::string make_file(const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream{path} << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  base::Environment environment(const std::string& python_exec = {}) const {
    std::map<std::string, std::string, std::less<>> variables{{"PATH", folder_.path() + "/bin"}};
    if (!python_exec.empty()) variables["PYTHON_EXEC"] = python_exec;
    return base::Environment{variables};
  }
  WorkerCommand resolve(const Words& command, ProgramMode mode = ProgramMode::automatic) const {
    LaunchOptions options;
    options.command = command;
    options.mode = mode;
    return resolve_command(options, environment());
  }
  void expect_refusal(const Words& command, int status, const char* words,
                      ProgramMode mode = ProgramMode::automatic) const {
    try {
      resolve(command, mode);
      ADD_FAILURE() << command[0];
    } catch (const ExitError& error) {
      EXPECT_EQ(error.exit_status(), status) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(words));
      EXPECT_THAT(error.what(), HasSubstr(std::filesystem::path(command[0]).filename().string()));
    }
  }

  std::filesystem::path before_ = std::filesystem::current_path();
  ScratchDirectory folder_{testing::TempDir()};
  std::string python_;
};

TEST_F(WorkerCommands, ScriptsGoToTheInterpreter) {
  make_file("plain.py", "print(1)\n", 0644);
  make_file("bang.py", "#!/usr/bin/env python3\n", 0755);
  make_file("bang", "#! /opt/python/bin/python -E\n", 0755);
  make_file("other.py", "#!/bin/sh\n''':'\nexec python3 $0\n'''\n", 0755);
  make_file("text", "print(1)\n", 0755);
  make_file("empty", "", 0644);
  for (const char* name : {"plain.py", "./plain.py", "bang.py", "bang", "other.py", "text", "empty"}) {
    const auto worker = resolve({name, "--lr", "1"});
    EXPECT_EQ(worker.path, python_);
    EXPECT_THAT(worker.arguments, ElementsAre(python_, "-u", name, "--lr", "1"));
    EXPECT_EQ(worker.display, name);
  }
}

TEST_F(WorkerCommands, ProgramsAreExecuted) {
  std::filesystem::copy_file("/proc/self/exe", "elf");
  make_file("shell.sh", "#!/bin/sh\n", 0755);
  EXPECT_EQ(resolve({"elf", "-x"}).path, "./elf");
  EXPECT_THAT(resolve({"elf", "-x"}).arguments, ElementsAre("elf", "-x"));
  EXPECT_EQ(resolve({"./shell.sh"}).path, "./shell.sh");
  EXPECT_EQ(resolve({folder_.path() + "/shell.sh"}).path, folder_.path() + "/shell.sh");
  ::chmod("elf", 0644);
  ::chmod("shell.sh", 0644);
  expect_refusal({"./elf"}, kExitNotExecutable, "chmod +x ./elf");
  expect_refusal({"shell.sh"}, kExitNotExecutable, "it is not a Python script and cannot be executed");
}

TEST_F(WorkerCommands, NamesThatAreNoFileHereComeFromThePath) {
  const auto worker = resolve({"python3", "-W", "ignore", "-u", "train.py", "-x"});
  EXPECT_EQ(worker.path, python_);
  EXPECT_THAT(worker.arguments, ElementsAre("python3", "-W", "ignore", "-u", "train.py", "-x"));
  EXPECT_EQ(worker.display, "train.py");
  EXPECT_EQ(resolve({"python3", "-c", "print(1)"}).display, "python3");
  EXPECT_EQ(resolve({"python3", "-m", "pkg.mod"}).display, "pkg.mod");
  std::filesystem::create_directory("python3");  // a folder of that name is not in the way
  EXPECT_EQ(resolve({"python3"}).path, python_);
}

TEST_F(WorkerCommands, WhatIsMissingIsNamed) {
  expect_refusal({"train.py"}, kExitNotFound, "'train.py': there is no such file");
  expect_refusal({"below/train.py"}, kExitNotFound, "there is no such file");
  expect_refusal({"nosuch"}, kExitNotFound, "no folder of PATH has it");
  expect_refusal({""}, kExitNotFound, "empty");
  expect_refusal({"train.py"}, kExitNotFound, "there is no such file", ProgramMode::run_path);
  expect_refusal({"train.py"}, kExitNotFound, "no folder of PATH has it", ProgramMode::no_python);
}

TEST_F(WorkerCommands, FoldersNeedAMain) {
  std::filesystem::create_directory("package");
  expect_refusal({"package"}, kExitNotExecutable, "it is a folder");
  expect_refusal({"./package"}, kExitNotExecutable, "it is a folder");
  make_file("package/__main__.py", "", 0644);
  EXPECT_THAT(resolve({"./package"}).arguments, ElementsAre(python_, "-u", "./package"));
}

TEST_F(WorkerCommands, APipeIsNotReadHere) {
  ASSERT_EQ(::mkfifo("pipe", 0600), 0);
  EXPECT_THAT(resolve({"pipe"}).arguments, ElementsAre(python_, "-u", "pipe"));
}

TEST_F(WorkerCommands, Modes) {
  make_file("plain.py", "", 0755);
  EXPECT_THAT(resolve({"pkg.mod", "a"}, ProgramMode::module).arguments,
              ElementsAre(python_, "-u", "-m", "pkg.mod", "a"));
  EXPECT_EQ(resolve({"./plain.py"}, ProgramMode::no_python).path, "./plain.py");
  EXPECT_THAT(resolve({"plain.py", "a"}, ProgramMode::run_path).arguments,
              ElementsAre(python_, "-u", "-c", HasSubstr("runpy.run_path"), "plain.py", "a"));
}

TEST_F(WorkerCommands, TheInterpreter) {
  LaunchOptions options;
  options.command = {"mod"};
  options.mode = ProgramMode::module;
  const std::string mine = make_file("mine", "#!/bin/sh\n", 0755);
  EXPECT_EQ(resolve_command(options, environment(mine)).path, mine);
  EXPECT_EQ(resolve_command(options, environment("python3")).path, python_) << "looked up in PATH";
  for (const char* wrong : {"/nosuch/python", "nosuch"}) {
    try {
      resolve_command(options, environment(wrong));
      ADD_FAILURE() << wrong;
    } catch (const ExitError& error) {
      EXPECT_EQ(error.exit_status(), kExitNotFound);
      EXPECT_THAT(error.what(), HasSubstr("correct or unset PYTHON_EXEC"));
    }
  }
  std::filesystem::rename("bin/python3", "bin/python");
  EXPECT_EQ(resolve_command(options, environment()).path, folder_.path() + "/bin/python");
  std::filesystem::remove("bin/python");
  EXPECT_THROW(resolve_command(options, environment()), ExitError);
}

TEST(WorkerArguments, TheMacroIsReplacedAsPythonsTemplatesDo) {
  const WorkerCommand command{.path = "/p",
                              .arguments = {"${local_rank}", "${local_rank}-$local_rank.", "$local_rankx", "$$",
                                            "$$local_rank", "$${local_rank}", "$$$local_rank"},
                              .display = "p"};
  EXPECT_THAT(arguments_of(command, 12),
              ElementsAre("${local_rank}", "12-12.", "$local_rankx", "$", "$local_rank", "${local_rank}", "$12"));
  const std::vector<std::string> unchanged = {
      "p", "", "$", "a$", "$1", "${", "${}", "${local_rank", "${rank}", "$rank", "$LOCAL_RANK", "${x}"};
  EXPECT_EQ(arguments_of({.path = "/p", .arguments = unchanged, .display = "p"}, 12), unchanged);
}

TEST_F(WorkerCommands, LinesThatEndAsOnWindowsAreNamed) {
  for (const char* line : {"#!/bin/sh\r\n", "#! /usr/bin/env bash\r\n", "#!/no/such/shell\r\n", "#!/bin/sh\r\r\n"}) {
    const std::string script = make_file("run", std::string(line) + "echo hi\r\n", 0755);
    expect_refusal({script}, kExitNotExecutable, "carriage return");
    expect_refusal({script}, kExitNotExecutable, "sed -i 's/\\r$//'", ProgramMode::no_python);
  }
  EXPECT_EQ(resolve({make_file("train.py", "#!/usr/bin/env python3\r\nprint(1)\r\n", 0755)}).path, python_);
  // perl, for one, takes the carriage return for a blank
  EXPECT_EQ(resolve({make_file("ok", "#!/bin/sh -e\r\n", 0755)}).arguments.size(), 1U);
}

TEST_F(WorkerCommands, AnInterpreterThatIsNotThereIsNamed) {
  expect_refusal({make_file("run", "#!/opt/none/bash\n", 0755)}, kExitNotExecutable, "install /opt/none/bash");
  expect_refusal({make_file("run", "\xef\xbb\xbf#!/bin/sh\n", 0755)}, kExitNotExecutable, "byte order mark");
}

TEST_F(WorkerCommands, AMissingProgramBehindAnOptionalValueHasItsHint) {
  LaunchOptions options;
  options.command = {"nothing"};
  options.program_hint = "write --dump-env=nothing";
  try {
    resolve_command(options, environment());
    ADD_FAILURE();
  } catch (const ExitError& error) {
    EXPECT_EQ(error.exit_status(), kExitNotFound);
    EXPECT_THAT(error.what(), HasSubstr("write --dump-env=nothing"));
  }
}

/// Runs a command with the machine's own Python; its exit status and what it wrote.
std::pair<int, std::string> run(const WorkerCommand& worker, const std::string& output) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDOUT_FILENO);
    std::vector<char*> argv;
    std::vector<std::string> words = worker.arguments;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv(worker.path.c_str(), argv.data());
    ::_exit(99);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  std::ifstream file{output};
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, {std::istreambuf_iterator<char>(file), {}}};
}

TEST_F(WorkerCommands, RunPathLooksLikeTheScript) {
  const auto machine = base::Environment::process();
  try {
    find_program("python3", machine.raw("PATH").value_or(""));
  } catch (const ExitError&) {
    GTEST_SKIP() << "no python3";
  }
  LaunchOptions options;
  options.mode = ProgramMode::run_path;
  const std::string script = make_file("s.py",
                                       "import sys\nprint(__name__, sys.argv[1:], sys.argv[0] == __file__)\n"
                                       "sys.exit(int(sys.argv[1]))\n",
                                       0644);
  options.command = {script, "7", "b c"};
  EXPECT_EQ(run(resolve_command(options, machine), "out"), std::pair(7, std::string("__main__ ['7', 'b c'] True\n")));
  options.command = {script, "0"};
  EXPECT_EQ(run(resolve_command(options, machine), "out").first, 0);
}

}  // namespace

// Programs are found as a shell would find them, and a wrong name is explained.

namespace {

struct ProgramLookup : testing::Test {
  std::string make_file(const std::string& name, mode_t mode) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream{path} << "#!/bin/sh\n";
    ::chmod(path.c_str(), mode);
    return path;
  }
  static int status_of(const std::string& name, const std::string& search_path, const char* words) {
    try {
      find_program(name, search_path);
    } catch (const ExitError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
      return error.exit_status();
    }
    return 0;
  }
  ScratchDirectory folder_{testing::TempDir()};
};

TEST_F(ProgramLookup, TakesTheFirstExecutableFileOfThePath) {
  std::filesystem::create_directories(folder_.path() + "/first/tool");  // a folder of that name is no program
  std::filesystem::create_directory(folder_.path() + "/second");
  std::filesystem::create_directory(folder_.path() + "/third");
  make_file("second/tool", 0644);
  const std::string tool = make_file("third/tool", 0755);
  const std::string first_two = folder_.path() + "/first:" + folder_.path() + "/second";
  EXPECT_EQ(find_program("tool", first_two + ":/nosuchfolder:" + folder_.path() + "/third"), tool);
  EXPECT_EQ(status_of("tool", first_two, "chmod +x"), kExitNotExecutable);
  EXPECT_EQ(status_of("tool", folder_.path() + "/first", "no folder of PATH"), kExitNotFound);
}

TEST_F(ProgramLookup, APathIsTakenAsItIs) {
  const std::string tool = make_file("tool", 0755);
  EXPECT_EQ(find_program(tool, ""), tool);
  EXPECT_EQ(status_of(folder_.path() + "/none", folder_.path(), "no such file"), kExitNotFound);
  EXPECT_EQ(status_of(folder_.path() + "/tool/below", "", "no such file"), kExitNotFound);
  EXPECT_EQ(status_of(folder_.path(), "", "folder"), kExitNotExecutable);
  EXPECT_EQ(status_of(make_file("script.py", 0644), "", "python "), kExitNotExecutable);
}

TEST_F(ProgramLookup, NamesThatOtherProgramsHaveSpoiltAreExplained) {
  EXPECT_EQ(status_of("tool\r", "/bin", "'tool\\r'"), kExitNotFound);
  EXPECT_EQ(status_of("./tool.py\r", "/bin", "carriage return"), kExitNotFound);
  EXPECT_EQ(status_of("\xe2\x80\x93nproc-per-node", "/bin", "a typographic dash instead of '-'"), kExitNotFound);
  EXPECT_EQ(status_of("\xe2\x80\x94nnodes", "/bin", "type it anew"), kExitNotFound);
}

TEST_F(ProgramLookup, AnEmptyNameIsNotFound) { EXPECT_EQ(status_of("", "/bin", "empty"), kExitNotFound); }

TEST_F(ProgramLookup, TheScratchFolderIsPrivateAndGoesAway) {
  std::string path;
  {
    const ScratchDirectory scratch{folder_.path()};
    path = scratch.path();
    struct stat facts {};
    ASSERT_EQ(::stat(path.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777U, 0700U);
    std::ofstream{path + "/file"} << "x";
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ProgramPosition, IsWhereTheInterpreterTakesItsProgramFrom) {
  const auto position = [](std::vector<std::string> words, bool python = true) {
    words.insert(words.begin(), "python3");
    return program_position(
        {.path = "/usr/bin/python3", .arguments = std::move(words), .display = "", .python = python});
  };
  EXPECT_EQ(position({"-u", "train.py", "-c", "x"}), 2U);
  EXPECT_EQ(position({"-u", "-m", "pkg", "x"}), 2U);
  EXPECT_EQ(position({"-W", "error", "-Xdev", "-bBs", "-c", "1"}), 5U);
  for (const std::vector<std::string>& others : {std::vector<std::string>{},
                                                 {"-"},
                                                 {"-m"},
                                                 {"-i", "train.py"},
                                                 {"-Vu", "x"},
                                                 {"--version"},
                                                 {"-umx"},
                                                 {"a.pyc"}})
    EXPECT_EQ(position(others), std::nullopt) << (others.empty() ? "" : others.front());
  EXPECT_EQ(position({"-u", "train.py"}, false), std::nullopt);
}

}  // namespace

}  // namespace ddp::launcher
