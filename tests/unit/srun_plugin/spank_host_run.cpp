#include "spank_host_run.hpp"

#include <ddp/deadline.hpp>

#include "support/checkout.hpp"

namespace ddp::srun_plugin::test {
namespace {

namespace fs = std::filesystem;

// Under valgrind and sanitizers, on a loaded machine. It is also longer than the plugin's own limits together.
constexpr std::chrono::seconds kLimit{120};
constexpr int kKilledAtTheDeadline = 124;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<char*> pointers(Lines& lines) {
  std::vector<char*> list;
  for (std::string& line : lines) list.push_back(line.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

int HostResult::lines_of_err() const { return static_cast<int>(std::count(err.begin(), err.end(), '\n')); }

SpankHostRun::SpankHostRun(const std::string& context) {
  std::string name = (fs::temp_directory_path() / "spank-host-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp: " << name;
  folder_ = name;
  fs::create_directory(folder_ / "out");
  settings_ = {{"plugin", ddp::test::built_file("lib/slurm/spank_ddp.so")},
               {"helper", ddp::test::built_program("ddp-step")},
               {"out", (folder_ / "out").string()},
               {"context", context}};
  environment_["PATH"] = "/usr/bin:/bin";
  // Sanitizers' settings belong to how the tests are run.
  for (const char* each : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* const value = std::getenv(each)) environment_[each] = value;
  }
}

SpankHostRun::~SpankHostRun() { fs::remove_all(folder_); }

SpankHostRun& SpankHostRun::set(const std::string& name, const std::string& value) {
  if (name != "fail") settings_.erase(name);
  settings_.emplace(name, value);
  return *this;
}

SpankHostRun& SpankHostRun::environment(const std::string& name, const std::string& value) {
  environment_[name] = value;
  return *this;
}

SpankHostRun& SpankHostRun::under(const Lines& words) {
  before_ = words;
  return *this;
}

SpankHostRun& SpankHostRun::with_mpi(const Lines& types) {
  const fs::path plugins = folder_ / "plugins";
  fs::create_directories(plugins);
  for (const std::string& type : types) std::ofstream(plugins / ("mpi_" + type + ".so")) << "x";
  return set("plugin_dirs", plugins.string());
}

HostResult SpankHostRun::run(const Lines& words) {
  {
    std::ofstream settings(folder_ / "settings");
    for (const auto& [name, value] : settings_) settings << name << '=' << value << '\n';
  }
  Lines arguments = before_;
  arguments.emplace_back(ddp::test::built_program("spank_host"));
  arguments.insert(arguments.end(), words.begin(), words.end());
  Lines environment{"SPANK_HOST=" + (folder_ / "settings").string()};
  for (const auto& [name, value] : environment_) environment.push_back(name + "=" + value);
  const auto argument_pointers = pointers(arguments);
  const auto environment_pointers = pointers(environment);
  const std::string out = folder_ / "stdout";
  const std::string err = folder_ / "stderr";
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    const int flags = O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC;
    ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    ::dup2(::open(out.c_str(), flags, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), flags, 0600), STDERR_FILENO);
    ::execve(argument_pointers.front(), argument_pointers.data(), environment_pointers.data());
    ::_exit(127);
  }
  HostResult result;
  int status = -1;
  for (const Deadline limit = Deadline::after(kLimit); ::waitpid(child, &status, WNOHANG) != child; ::usleep(2000)) {
    if (!limit.expired()) continue;
    ::kill(-child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    status = kKilledAtTheDeadline << 8;
    break;
  }
  result.exit_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.out = read_file(out);
  result.err = read_file(err);
  return result;
}

Lines SpankHostRun::seen(const std::string& name) const {
  const fs::path path = folder_ / "out" / name;
  EXPECT_TRUE(fs::exists(path)) << name;
  Lines lines;
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line, '\0');) lines.push_back(line);
  return lines;
}

std::map<std::string, std::string> SpankHostRun::variables(const std::string& name) const {
  std::map<std::string, std::string> all;
  for (const std::string& line : seen(name))
    all.emplace(line.substr(0, line.find('=')), line.substr(line.find('=') + 1));
  return all;
}

void add_step_environment(SpankHostRun& run, int tasks) {
  run.set("tasks", std::to_string(tasks));
  const std::string count = std::to_string(tasks);
  for (const auto& [name, value] : std::map<std::string, std::string>{{"SLURM_JOB_ID", "7"},
                                                                      {"SLURM_STEP_ID", "0"},
                                                                      {"SLURM_PROCID", "0"},
                                                                      {"SLURM_LOCALID", "0"},
                                                                      {"SLURM_NODEID", "0"},
                                                                      {"SLURM_STEP_NUM_TASKS", count},
                                                                      {"SLURM_STEP_NUM_NODES", "1"},
                                                                      {"SLURM_STEP_NODELIST", "n1"},
                                                                      {"SLURMD_NODENAME", "n1"},
                                                                      {"SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"},
                                                                      {"USERS_OWN", "with spaces = and equals"},
                                                                      {"EMPTY", ""}}) {
    run.environment(name, value);
  }
}

}  // namespace ddp::srun_plugin::test
