#include <ddp/binding.hpp>

#include <dirent.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/system_error.hpp"

namespace ddp {
namespace {

using CpuMask = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>;

CpuMask new_mask(std::size_t capacity) {
  CpuMask mask{CPU_ALLOC(capacity), [](cpu_set_t* set) { CPU_FREE(set); }};
  if (!mask) throw std::bad_alloc();
  CPU_ZERO_S(CPU_ALLOC_SIZE(capacity), mask.get());
  return mask;
}

CpuSet affinity_of_this_thread() {
  // The kernel refuses a mask smaller than its own.
  for (std::size_t capacity = 1024; capacity <= CpuSet::kLargest + 1; capacity *= 2) {
    const CpuMask mask = new_mask(capacity);
    const std::size_t size_bytes = CPU_ALLOC_SIZE(capacity);
    if (::sched_getaffinity(0, size_bytes, mask.get()) == 0) {
      CpuSet cpus;
      for (std::size_t cpu = 0; cpu < capacity; ++cpu) {
        if (CPU_ISSET_S(cpu, size_bytes, mask.get())) cpus.insert(static_cast<int>(cpu));
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  throw base::system_error("reading which processors this process may use (sched_getaffinity)", errno);
}

// More than any kernel has (CONFIG_NODES_SHIFT is at most 10).
constexpr std::size_t kMostNodes = 1024;
constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
using NodeMask = std::array<unsigned long, kMostNodes / kWordBits>;

int preferred_memory_of_this_thread() {
  int mode = 0;
  NodeMask nodes{};
  // Forbidden in many containers; what is not known is then said to be the kernel's own policy.
  if (::syscall(SYS_get_mempolicy, &mode, nodes.data(), kMostNodes, nullptr, 0UL) != 0) return -1;
  if (mode != MPOL_PREFERRED) return -1;
  for (std::size_t node = 0; node < kMostNodes; ++node) {
    if ((nodes[node / kWordBits] >> (node % kWordBits) & 1U) != 0) return static_cast<int>(node);
  }
  return -1;
}

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

void bind_threads(const CpuSet& cpus) {
  const std::size_t capacity = CpuSet::kLargest + 1;
  const std::size_t size_bytes = CPU_ALLOC_SIZE(capacity);
  const CpuMask mask = new_mask(capacity);
  for (const int cpu : cpus.to_vector()) CPU_SET_S(static_cast<std::size_t>(cpu), size_bytes, mask.get());
  std::set<pid_t> done;
  for (bool found = true; found;) {  // a thread that is not bound yet may start another one meanwhile
    found = false;
    for (const pid_t thread : threads_of_this_process()) {
      if (!done.insert(thread).second) continue;
      found = true;
      if (::sched_setaffinity(thread, size_bytes, mask.get()) == 0 || errno == ESRCH) continue;
      throw base::system_error(fmt::format("binding to the processors {} (sched_setaffinity)", cpus.to_string()), errno,
                               "the job's cpuset may have changed; --bind none leaves binding out");
    }
  }
}

std::optional<std::string> prefer_memory(int node) {
  NodeMask nodes{};
  if (node >= 0)
    nodes.at(static_cast<std::size_t>(node) / kWordBits) |= 1UL << (static_cast<std::size_t>(node) % kWordBits);
  // The kernel reads one bit less than it is told (set_mempolicy(2), BUGS).
  const long result = node >= 0 ? ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), kMostNodes + 1)
                                : ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0UL);
  if (result == 0) return std::nullopt;
  const int number = errno;
  if (node < 0) return std::nullopt;  // the default is what there is, then
  return fmt::format("memory of NUMA node {} could not be preferred: {} [{}]", node, base::errno_text(number),
                     base::errno_name(number));
}

}  // namespace

Binding Binding::current() {
  return {.cpus = affinity_of_this_thread(), .preferred_memory = preferred_memory_of_this_thread()};
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
                 .cause = "the set of processors is empty",
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  bind_threads(cpus);
  std::vector<std::string> remarks;
  const CpuSet granted = affinity_of_this_thread();
  if (granted != cpus) {
    remarks.push_back(fmt::format("of the processors {} the kernel granted {} (cpuset of the job or container)",
                                  cpus.to_string(), granted.to_string()));
  }
  if (auto remark = prefer_memory(preferred_memory)) remarks.push_back(std::move(*remark));
  return remarks;
}

}  // namespace ddp
