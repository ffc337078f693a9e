// The functions that Slurm exports to SPANK plugins, as the header of Slurm declares them.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "spank_host_state.hpp"

using ddp::srun_plugin::test::find_in_job;
using ddp::srun_plugin::test::host;
using ddp::srun_plugin::test::Host;

extern "C" {

slurm_conf_t slurm_conf;

spank_context_t spank_context() { return host().fails("spank_context") ? S_CTX_ERROR : host().context; }

spank_err_t spank_option_register(spank_t, spank_option* option) {
  Host& now = host();
  if (now.fails("spank_option_register") || !now.in_init) return static_cast<spank_err_t>(ESPANK_BAD_ARG);
  now.options.push_back(*option);
  now.names.emplace_back(option->name);
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...) {
  Host& now = host();
  if (now.fails("spank_get_item")) return ESPANK_ERROR;
  if (now.context != S_CTX_REMOTE && !now.in_local_user_init) return ESPANK_NOT_REMOTE;
  va_list values;
  va_start(values, item);
  auto result = static_cast<spank_err_t>(ESPANK_SUCCESS);
  if (item == S_JOB_STEPID) {
    *va_arg(values, std::uint32_t*) = static_cast<std::uint32_t>(std::stoul(now.setting("step", "0"), nullptr, 0));
  } else if (item == S_JOB_LOCAL_TASK_COUNT) {
    *va_arg(values, std::uint32_t*) = static_cast<std::uint32_t>(std::stoul(now.setting("tasks", "1")));
  } else if (item == S_TASK_GLOBAL_ID && spank->task >= 0) {
    *va_arg(values, std::uint32_t*) = static_cast<std::uint32_t>(spank->task);
  } else if (item == S_TASK_EXIT_STATUS && spank->status >= 0) {
    *va_arg(values, int*) = spank->status;
  } else if (item == S_JOB_ENV) {
    now.job_pointers.clear();
    for (std::string& line : now.job) now.job_pointers.push_back(line.data());
    now.job_pointers.push_back(nullptr);
    *va_arg(values, char***) = now.job_pointers.data();
  } else {
    result = ESPANK_BAD_ARG;
  }
  va_end(values);
  return result;
}

spank_err_t spank_getenv(spank_t, const char* name, char* buffer, int size) {
  if (host().fails("spank_getenv")) return ESPANK_ERROR;
  if (host().context != S_CTX_REMOTE) return ESPANK_NOT_REMOTE;
  const auto found = find_in_job(name);
  if (found == host().job.end()) return ESPANK_ENV_NOEXIST;
  const std::string value = found->substr(std::strlen(name) + 1);
  std::snprintf(buffer, static_cast<std::size_t>(size), "%s", value.c_str());
  return value.size() < static_cast<std::size_t>(size) ? static_cast<spank_err_t>(ESPANK_SUCCESS) : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t, const char* name, const char* value, int overwrite) {
  if (host().fails("spank_setenv")) return ESPANK_ERROR;
  if (host().context != S_CTX_REMOTE) return ESPANK_NOT_REMOTE;
  const auto found = find_in_job(name);
  if (found != host().job.end() && overwrite == 0) return ESPANK_ENV_EXISTS;
  const std::string line = std::string(name) + "=" + value;
  if (found != host().job.end()) {
    *found = line;
  } else {
    host().job.push_back(line);
  }
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}

spank_err_t spank_unsetenv(spank_t, const char* name) {
  if (host().fails("spank_unsetenv")) return ESPANK_ERROR;
  if (host().context != S_CTX_REMOTE) return ESPANK_NOT_REMOTE;
  const auto found = find_in_job(name);
  if (found != host().job.end()) host().job.erase(found);
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}

void slurm_error(const char* format, ...) {
  char text[4096];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  std::fprintf(stderr, "error: %s\n", text);
}

}  // extern "C"
