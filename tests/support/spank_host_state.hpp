// What Slurm's side of a SPANK plugin knows: its settings, the plugin's options, the environment of the job.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

extern "C" {
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
extern slurm_conf_t slurm_conf;
/// A step, or one of its tasks, as hooks get it.
struct spank_handle {
  int task = -1;
  int status = -1;  ///< of its end; -1: it runs
};
}

namespace ddp::srun_plugin::test {

struct Host {
  std::multimap<std::string, std::string> settings;
  std::set<std::string> failing;
  spank_context_t context = S_CTX_LOCAL;
  std::vector<spank_option> options;
  std::vector<std::string> names;   // of options: Slurm copies them
  std::vector<std::string> job;     // environment of the job, on a node
  std::vector<char*> job_pointers;  // the same, as Slurm shows it
  bool in_init = false;
  bool in_local_user_init = false;

  std::string setting(const std::string& name, const std::string& otherwise = "") const {
    const auto found = settings.find(name);
    return found == settings.end() ? otherwise : found->second;
  }
  bool fails(const char* function) const { return failing.count(function) > 0; }
};

inline Host& host() {
  static Host instance;
  return instance;
}

/// The line of a variable in the environment of the job, or the end of it.
inline auto find_in_job(std::string_view name) {
  return std::find_if(host().job.begin(), host().job.end(), [&](const std::string& line) {
    return line.size() > name.size() && line[name.size()] == '=' && line.starts_with(name);
  });
}

}  // namespace ddp::srun_plugin::test
