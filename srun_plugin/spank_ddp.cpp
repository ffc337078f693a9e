// Slurm's hooks. A guard lets no exception out and makes no step fail. As root, only options are registered, and ends
// of tasks told to the node's witness.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/slurm_step.hpp"
#include "srun_side/command_line.hpp"
#include "srun_side/plugin_options.hpp"
#include "srun_side/srun_side.hpp"
#include "task_side/task_side.hpp"

extern "C" {
// A const at namespace scope would be invisible outside in C++, and the plugin "not a SPANK plugin".
extern const char plugin_name[] = "ddp";
extern const char plugin_type[] = "spank";
extern const unsigned int plugin_version = SLURM_VERSION_NUMBER;
extern const unsigned int spank_plugin_version = 1;
// Not Slurm's: ddp-selftest --local compares it.
extern const char spank_ddp_version[] = DDP_VERSION_STRING;
}

namespace {

using namespace ddp::srun_plugin;
namespace base = ddp::base;

/// The plugin in this process, whose hooks run one after the other.
struct State {
  std::string ddp_step;
  PluginOptions options;
  bool defaults_read = false;
  std::unique_ptr<SrunSide> srun;
  std::unique_ptr<TaskSide> task;
};

State& state() {
  static State instance;
  return instance;
}

template <class Function>
int guarded(const char* hook, Function&& function) noexcept {
  try {
    function();
  } catch (const std::exception& error) {
    slurm_error("ddp: %s: %s", hook, error.what());
  } catch (...) {
    slurm_error("ddp: %s: unknown exception", hook);
  }
  return 0;
}

/// Ends srun, sbatch or salloc before there is an allocation, as they do themselves where an option is wrong.
[[noreturn]] void refuse(const char* text) {
  slurm_error("%s", text);
  std::exit(1);
}

/// What can be known to go wrong in the step, before there is one. Throws Error.
void check_option(Option option, const PluginOptions& options) {
  if (option == Option::event_log) check_event_log(options.event_log);
  if (option == Option::backend) check_backend(options.backend, true);
  const auto arguments = own_arguments();
  const auto names_backend = [](const std::string& argument) { return argument.starts_with("--ddp-backend"); };
  if (option == Option::ddp && std::none_of(arguments.begin(), arguments.end(), names_backend)) {
    check_backend(options.backend, false);
  }
}

int option_callback(int value, const char* argument, int remote) noexcept {
  if (remote != 0) return 0;  // tasks get srun's result
  try {
    State& now = state();
    if (!now.defaults_read) {
      // options of the command line come later
      now.options = default_options(&process_variable);
      now.defaults_read = true;
    }
    set_option(now.options, static_cast<Option>(value), argument);
    if (spank_context() == S_CTX_LOCAL) check_option(static_cast<Option>(value), now.options);
    return 0;
  } catch (const std::exception& error) {
    if (argument == nullptr) refuse(error.what());  // Slurm would add "Invalid --ddp argument: (null)"
    slurm_error("%s", error.what());
  } catch (...) {
    slurm_error("ddp: reading options: unknown exception");
  }
  return -1;
}

void register_options(spank_t spank) {
  int value = 0;
  for (const OptionEntry& entry : option_table()) {
    spank_option option{.name = const_cast<char*>(entry.name),
                        // Slurm writes "--name=arginfo", as if the value were compulsory
                        .arginfo = const_cast<char*>(entry.value_optional ? nullptr : entry.arginfo),
                        .usage = const_cast<char*>(entry.usage),
                        .has_arg = entry.value_optional       ? 2
                                   : entry.arginfo != nullptr ? 1
                                                              : 0,  // as getopt_long(3)
                        .val = value++,
                        .cb = &option_callback};
    spank_option_register(spank, &option);
  }
}

void read_arguments(int count, char** arguments) {
  constexpr std::string_view kHelper = "helper=";
  for (int i = 0; i < count; ++i) {
    const std::string_view text{arguments[i]};
    if (text.starts_with(kHelper)) {
      state().ddp_step = text.substr(kHelper.size());
    } else if (spank_context() == S_CTX_LOCAL) {
      slurm_error("ddp: plugstack.conf: unknown argument '%s'; known is helper=PATH", arguments[i]);
    }
  }
}

bool in_srun() { return spank_context() == S_CTX_LOCAL && state().srun != nullptr; }

}  // namespace

extern "C" {

int slurm_spank_init(spank_t spank, int count, char** arguments) {
  return guarded("starting", [&] {
    const spank_context_t context = spank_context();
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE) return;
    read_arguments(count, arguments);
    register_options(spank);
    if (context == S_CTX_REMOTE) state().task = std::make_unique<TaskSide>(state().ddp_step);
    if (context != S_CTX_LOCAL) return;
    state().srun = std::make_unique<SrunSide>(state().ddp_step);
    state().srun->before_options(read_command_line(own_arguments()), SlurmFacts::read());
  });
}

int slurm_spank_init_post_opt(spank_t, int, char**) {
  return guarded("after reading options", [] {
    if (!in_srun()) return;
    try {
      state().srun->after_options(state().options, SlurmFacts::read());
    } catch (const RefusedCommand& refused) {
      refuse(refused.what());
    }
  });
}

int slurm_spank_local_user_init(spank_t spank, int, char**) {
  return guarded("before the launch", [&] {
    std::uint32_t step = 0;
    if (spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS && !base::is_user_step(step)) return;
    std::uint32_t job = 0;
    StepName name;
    if (spank_get_item(spank, S_JOB_ID, &job) == ESPANK_SUCCESS)
      name = {.job = std::to_string(job), .step = fmt::format("{}.{}", job, step)};
    if (in_srun()) state().srun->before_launch(state().options, SlurmFacts::read(), name);
  });
}

int slurm_spank_user_init(spank_t spank, int, char**) {
  return guarded("preparing the node", [&] {
    if (state().task != nullptr) state().task->before_fork(spank);
  });
}

int slurm_spank_task_init(spank_t spank, int, char**) {
  return guarded("preparing the task", [&] {
    if (state().task != nullptr) state().task->prepare_task(spank);
  });
}

int slurm_spank_task_exit(spank_t spank, int, char**) {
  return guarded("after the end of a task", [&] {
    if (state().task != nullptr) state().task->task_ended(spank);
  });
}

int slurm_spank_exit(spank_t, int, char**) {
  return guarded("ending", [] {
    if (in_srun()) state().srun->at_end();
    state().task.reset();
  });
}

}  // extern "C"
