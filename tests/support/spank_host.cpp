// Slurm's side of a SPANK plugin: what srun and slurmstepd export to it, and its hooks in their order. Started with a
// command line like srun's, since the plugin reads that of its process:
//
//   SPANK_HOST=settings spank_host --ddp -n 2 program argument...
//
// "settings" is a file of lines "name=value", which the environment does not name any more when the plugin is loaded:
//   plugin, helper      the plugin, and what plugstack.conf says behind it
//   context             local (srun; default), allocator, remote (slurmstepd), slurmd, job_script
//   out                 folder for what is seen: files of "name=value" with a 0 byte behind each
//   step, tasks         number of the step; tasks of this node
//   ends                exit codes of the tasks, as slurm_spank_task_exit is told: "0 1"
//   container           slurm_spank_user_init is called in a process that is not the tasks' parent (job_container)
//   ends_with           exit status of the host, as srun takes it from its tasks
//   fail                a function of Slurm's that fails; may be repeated
//   plugin_dirs, mpi_default, ports   of slurm.conf
//   fault               what a plugin might do wrong, done by the host: memory, access, descriptor
// srun runs the program when the step would run; slurmstepd forks tasks, which end without running anything.
#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "spank_host_state.hpp"

namespace {

using ddp::srun_plugin::test::host;
using ddp::srun_plugin::test::Host;

constexpr int kUsage = 2;
constexpr int kHookFailed = 3;
constexpr int kOptionRefused = 4;  // srun ends then
constexpr int kDescriptorsLeft = 5;
constexpr int kTaskFailed = 6;

[[noreturn]] void stop(int status, const std::string& text) {
  std::fprintf(stderr, "spank_host: %s\n", text.c_str());
  std::exit(status);
}

/// Lines with a 0 byte behind each.
void write_out(const std::string& name, const std::vector<std::string>& lines) {
  std::ofstream file(host().setting("out") + "/" + name, std::ios::binary);
  for (const std::string& line : lines) file << line << '\0';
  if (!file.flush()) stop(kUsage, "cannot write " + name);
}

std::vector<std::string> own_environment() {
  std::vector<std::string> lines;
  for (char** line = ::environ; *line != nullptr; ++line) lines.emplace_back(*line);
  return lines;
}

std::vector<std::string> own_affinity() {
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return {"unknown"};
  std::vector<std::string> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &mask)) processors.push_back(std::to_string(i));
  }
  return processors;
}

/// Open descriptors but the one that lists them.
std::vector<std::string> own_descriptors() {
  std::vector<std::string> list;
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return list;
  while (const dirent* const entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name == "." || name == ".." || name == std::to_string(::dirfd(folder))) continue;
    char target[512];
    const ssize_t size = ::readlinkat(::dirfd(folder), entry->d_name, target, sizeof target);
    list.push_back(name + "=" + (size > 0 ? std::string(target, static_cast<std::size_t>(size)) : "?"));
  }
  ::closedir(folder);
  std::sort(list.begin(), list.end());
  return list;
}

void read_settings() {
  const char* const path = std::getenv("SPANK_HOST");
  if (path == nullptr) stop(kUsage, "SPANK_HOST names no file");
  std::ifstream file(path);
  if (!file) stop(kUsage, std::string("cannot read ") + path);
  Host& now = host();
  for (std::string line; std::getline(file, line);) {
    const auto equals = line.find('=');
    if (equals == std::string::npos) stop(kUsage, "no name=value: " + line);
    now.settings.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  ::unsetenv("SPANK_HOST");
  const auto [first, last] = now.settings.equal_range("fail");
  for (auto each = first; each != last; ++each) now.failing.insert(each->second);
  const std::map<std::string, spank_context_t> contexts{{"local", S_CTX_LOCAL},
                                                        {"allocator", S_CTX_ALLOCATOR},
                                                        {"remote", S_CTX_REMOTE},
                                                        {"slurmd", S_CTX_SLURMD},
                                                        {"job_script", S_CTX_JOB_SCRIPT}};
  const auto context = contexts.find(now.setting("context", "local"));
  if (context == contexts.end()) stop(kUsage, "unknown context");
  now.context = context->second;
}

void read_slurm_conf() {
  static std::string plugin_dirs = host().setting("plugin_dirs");
  static std::string mpi_default = host().setting("mpi_default", "none");
  static std::uint16_t range[2] = {0, 0};
  slurm_conf.plugindir = plugin_dirs.data();
  slurm_conf.mpi_default = mpi_default.data();
  const std::string ports = host().setting("ports");
  if (ports.empty()) return;
  range[0] = static_cast<std::uint16_t>(std::stoi(ports));
  range[1] = static_cast<std::uint16_t>(std::stoi(ports.substr(ports.find('-') + 1)));
  slurm_conf.srun_port_range = range;
}

class Plugin {
 public:
  explicit Plugin(const std::string& path) : handle_(::dlopen(path.c_str(), RTLD_LAZY)) {
    if (handle_ == nullptr) stop(kUsage, ::dlerror());
    const auto* const type = static_cast<const char*>(::dlsym(handle_, "plugin_type"));
    const auto* const version = static_cast<const unsigned int*>(::dlsym(handle_, "plugin_version"));
    if (type == nullptr || std::strcmp(type, "spank") != 0 || version == nullptr || *version != SLURM_VERSION_NUMBER ||
        ::dlsym(handle_, "spank_plugin_version") == nullptr || ::dlsym(handle_, "plugin_name") == nullptr) {
      stop(kUsage, "it is no SPANK plugin of this Slurm");
    }
    if (const std::string helper = host().setting("helper"); !helper.empty()) arguments_.push_back("helper=" + helper);
    for (std::string& text : arguments_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }

  /// Slurm takes any failure of a required plugin's hook for one of the step.
  void hook(const char* name, spank_handle& spank) {
    auto* const function = reinterpret_cast<spank_f*>(::dlsym(handle_, name));
    if (function == nullptr) return;
    if (function(&spank, static_cast<int>(arguments_.size()), pointers_.data()) != 0) {
      stop(kHookFailed, std::string(name) + " failed");
    }
  }

 private:
  void* handle_;
  std::vector<std::string> arguments_;
  std::vector<char*> pointers_;
};

/// The value of an option in the environment, as a step inherits it from its job or as users may set it.
const char* option_in_environment(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  const std::string inherited = "_SLURM_SPANK_OPTION_ddp_" + name;
  const char* const value = std::getenv(("SLURM_SPANK_" + inherited).c_str());
  return value != nullptr ? value : std::getenv(inherited.c_str());
}

/// Calls the plugin back for its options in the environment and then for those among srun's. Returns what is left: the
/// user's program.
std::vector<char*> read_options(char** words, int remote) {
  Host& now = host();
  std::vector<std::string> refused;
  for (std::size_t i = 0; remote == 0 && i < now.options.size(); ++i) {
    const char* const value = option_in_environment(now.names[i]);
    const char* const given = now.options[i].has_arg != 0 ? value : nullptr;
    if (value != nullptr && now.options[i].cb(now.options[i].val, given, remote) != 0) refused.push_back(now.names[i]);
  }
  for (++words; *words != nullptr && (*words)[0] == '-'; ++words) {
    const std::string text = *words;
    const auto equals = text.find('=');
    const std::string name = text.substr(std::min<std::size_t>(2, text.size()), equals - 2);
    const auto found = std::find(now.names.begin(), now.names.end(), name);
    if (found == now.names.end()) {
      if (text == "-n" && words[1] != nullptr) ++words;  // the only one of srun's with a value here
      continue;
    }
    const spank_option& option = now.options[static_cast<std::size_t>(found - now.names.begin())];
    const char* value = nullptr;
    if (option.has_arg != 0) value = equals != std::string::npos ? *words + equals + 1 : *++words;
    if (option.cb(option.val, value, remote) != 0) refused.push_back(name);
  }
  write_out("refused", refused);
  if (!refused.empty()) std::exit(kOptionRefused);
  std::vector<char*> program;
  for (; *words != nullptr; ++words) program.push_back(*words);
  program.push_back(nullptr);
  return program;
}

/// For tests that want to know whether they would see it.
void commit_fault(const std::string& fault) {
  if (fault == "descriptor") [[maybe_unused]]
    const int left = ::dup(STDERR_FILENO);
  if (fault != "memory" && fault != "access") return;
  // volatile: compilers would leave out what has no effect
  volatile char* volatile block = static_cast<char*>(std::malloc(64));
  block[0] = 'x';
  if (fault == "access") {
    std::free(const_cast<char*>(block));
    [[maybe_unused]] const char seen = block[0];
  }
  block = nullptr;
}

void run_step(const std::vector<char*>& program) {
  if (program.front() == nullptr) return;
  const pid_t child = ::fork();
  if (child == 0) {
    ::execvp(program.front(), program.data());
    ::_exit(127);
  }
  int status = -1;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0) stop(kTaskFailed, "the program failed");
}

void run_tasks(Plugin& plugin, spank_handle& spank) {
  const int tasks = std::stoi(host().setting("tasks", "1"));
  std::vector<pid_t> children;
  for (int task = 0; task < tasks; ++task) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto before = own_descriptors();
      const std::string name = "task." + std::to_string(task);
      for (const char* variable : {"SLURM_PROCID", "SLURM_LOCALID"}) {
        const auto found = ddp::srun_plugin::test::find_in_job(variable);
        const std::string line = std::string(variable) + "=" + std::to_string(task);
        if (found != host().job.end()) *found = line;
      }
      write_out(name + ".before", host().job);
      spank.task = task;
      plugin.hook("slurm_spank_task_init", spank);
      write_out(name + ".environment", host().job);
      write_out(name + ".affinity", own_affinity());
      std::exit(own_descriptors() == before ? 0 : kDescriptorsLeft);
    }
    children.push_back(child);
  }
  std::istringstream codes(host().setting("ends"));
  for (int task = 0; task < tasks; ++task) {
    const pid_t child = children[static_cast<std::size_t>(task)];
    int status = -1;
    if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0) {
      stop(kTaskFailed, "a task ended with " + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1));
    }
    int code = 0;
    codes >> code;
    spank_handle ended{.task = task, .status = (code & 0xff) << 8};
    plugin.hook("slurm_spank_task_exit", ended);
  }
}

}  // namespace

int main(int, char** argv) {
  read_settings();
  read_slurm_conf();
  Host& now = host();
  const bool local = now.context == S_CTX_LOCAL;
  const bool remote = now.context == S_CTX_REMOTE;
  if (remote) now.job = own_environment();
  write_out("before", own_environment());
  Plugin plugin(now.setting("plugin"));
  spank_handle spank;
  const auto descriptors = own_descriptors();
  commit_fault(now.setting("fault"));

  now.in_init = true;
  plugin.hook("slurm_spank_init", spank);
  now.in_init = false;
  std::vector<std::string> registered;
  for (const spank_option& option : now.options) {
    registered.push_back(std::string(option.name) + " " + (option.arginfo != nullptr ? option.arginfo : "-") + " " +
                         std::to_string(option.has_arg));
  }
  write_out("options", registered);
  const auto program = read_options(argv, remote ? 1 : 0);
  plugin.hook("slurm_spank_init_post_opt", spank);
  if (local) {
    now.in_local_user_init = true;
    plugin.hook("slurm_spank_local_user_init", spank);
    now.in_local_user_init = false;
    write_out("environment", own_environment());
    run_step(program);
  } else if (remote) {
    if (now.setting("container").empty()) plugin.hook("slurm_spank_user_init", spank);
    run_tasks(plugin, spank);
  }
  plugin.hook("slurm_spank_exit", spank);
  if (!local) write_out("environment", own_environment());
  const auto left = own_descriptors();
  if (left != descriptors) {
    write_out("descriptors", left);
    stop(kDescriptorsLeft, "descriptors were left open");
  }
  return std::stoi(now.setting("ends_with", "0"));
}
