// A folder for the scripts that stand for ddp-step, and what tests of it and of its client wait for.
#pragma once

#include <ddp/error.hpp>

#include "srun_side/ddp_step_client.hpp"
#include "support/error_of.hpp"

namespace ddp::srun_plugin::test {

namespace fs = std::filesystem;

inline Deadline patience() { return Deadline::after(std::chrono::seconds(60)); }

inline bool eventually(const std::function<bool()>& condition) {
  for (const Deadline limit = patience(); !condition(); ::usleep(5000)) {
    if (limit.expired()) return false;
  }
  return true;
}

template <class Function>
std::string error_of(Function&& function, ErrorCode code) {
  const Error error = ddp::test::thrown_by(function);
  EXPECT_EQ(error.code(), code) << error.what();
  return error.what();
}

inline DdpStepClient start(const std::string& path, const std::vector<std::string>& arguments) {
  return DdpStepClient(path, arguments, {});
}

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct StepProgramTest : ::testing::Test {
  StepProgramTest() {
    std::string name = (fs::temp_directory_path() / "ddp-step-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp: " << name;
    folder_ = name;
  }
  ~StepProgramTest() override { fs::remove_all(folder_); }

  /// A program that runs @p lines in sh. It leaves its process id in the file "pid".
  std::string script(const std::string& lines) {
    const fs::path path = folder_ / "program";
    std::ofstream(path) << "#!/bin/sh\necho $$ >" << (folder_ / "pid.new").string() << "\nmv "
                        << (folder_ / "pid.new").string() << ' ' << (folder_ / "pid").string() << '\n'
                        << lines << '\n';
    ::chmod(path.c_str(), 0755);
    return path;
  }
  pid_t script_pid() {
    EXPECT_TRUE(eventually([&] { return fs::exists(folder_ / "pid"); }));
    return std::stoi(read_file(folder_ / "pid"));
  }
  static bool is_gone(pid_t process) { return ::kill(process, 0) != 0 && errno == ESRCH; }

  fs::path folder_;
};

}  // namespace ddp::srun_plugin::test
