#include <ddp/binding.hpp>

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <set>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/errors.hpp"
#include "topology/placement/rank_resources.hpp"

namespace ddp {
namespace {

std::set<pid_t> threads_of_this_process() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder{::opendir("/proc/self/task"), &::closedir};
  if (!folder) return {static_cast<pid_t>(::syscall(SYS_gettid))};
  std::set<pid_t> threads;
  while (const dirent* entry = ::readdir(folder.get())) {
    pid_t thread = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, thread).ptr == end) threads.insert(thread);
  }
  return threads;
}

void bind_threads(const topology::AffinityMask& mask, const CpuSet& cpus) {
  std::set<pid_t> done;
  for (bool found = true; found;) {  // a thread that is not bound yet may start another one meanwhile
    found = false;
    for (const pid_t thread : threads_of_this_process()) {
      if (!done.insert(thread).second) continue;
      found = true;
      if (mask.bind(thread) || errno == ESRCH) continue;
      throw base::system_error(fmt::format("binding to the processors {} (sched_setaffinity)", cpus.to_string()), errno,
                               "are they in the job's cpuset?");
    }
  }
}

}  // namespace

Binding Binding::current() {
  return {.cpus = topology::affinity_of(0), .preferred_memory = topology::preferred_memory_of_this_thread()};
}

Binding Binding::from(const Topology& topology, const Placement& placement) {
  Binding binding{.cpus = placement.cpus, .preferred_memory = -1};
  int with_memory = 0;
  for (const NumaNode& node : topology.numa_nodes()) {
    if (!node.cpus.intersects(placement.cpus)) continue;
    ++with_memory;
    binding.preferred_memory = node.os_index;
  }
  if (with_memory != 1) binding.preferred_memory = -1;
  return binding;
}

std::vector<std::string> Binding::apply() const {
  if (cpus.empty()) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "binding to processors",
                 .cause = "the set of processors is empty"}};
  }
  const topology::AffinityMask mask{*this};
  bind_threads(mask, cpus);
  std::vector<std::string> remarks;
  const CpuSet granted = topology::affinity_of(0);
  if (granted != cpus) {
    remarks.push_back(fmt::format("of the processors {} the kernel granted {} (cpuset of the job or container)",
                                  cpus.to_string(), granted.to_string()));
  }
  if (!mask.prefer_memory() && preferred_memory >= 0) {
    const int number = errno;
    remarks.push_back(fmt::format("memory of NUMA node {} could not be preferred: {} [{}]", preferred_memory,
                                  base::errno_text(number), base::errno_name(number)));
  }
  return remarks;
}

}  // namespace ddp
