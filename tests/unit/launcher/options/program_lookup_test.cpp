// Programs are found as a shell would find them, and a wrong name is explained.
#include "options/program_lookup.hpp"

#include <sys/stat.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "outcome/exit_error.hpp"
#include "pmix_server/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

using testing::HasSubstr;

class ProgramLookup : public testing::Test {
 protected:
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
  EXPECT_EQ(status_of("\xe2\x80\x93nproc-per-node", "/bin", "a dash that is no '-'"), kExitNotFound);
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

}  // namespace
}  // namespace ddp::launcher
