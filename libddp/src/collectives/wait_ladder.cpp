#include "collectives/wait_ladder.hpp"

#include <unistd.h>

#include <cstddef>

#include "base/cgroup_limits.hpp"

namespace ddp::collectives {
namespace {

/// The number of allowed processors; masks of more than 1024 need a larger set.
int count_of_mask() {
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(bits));
    if (set == nullptr) return 1;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(bits));
    const bool read = ::sched_getaffinity(0, bytes, set) == 0;
    const int count = read ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (read) return std::max(count, 1);
  }
  return 1;
}

}  // namespace

ProcessorShare ProcessorShare::read(const std::filesystem::path& root) {
  return {.in_mask = count_of_mask(),
          .quota = base::CgroupLimits::read(root).processors,
          .on_machine = std::max(static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), 1)};
}

bool ProcessorShare::enough_for(int ranks) const noexcept {
  if (quota > 0 && quota < ranks) return false;
  return ranks <= in_mask || (in_mask < on_machine && ranks <= on_machine);
}

}  // namespace ddp::collectives
