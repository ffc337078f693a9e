// Faults that tests order by function, rank and number of the call (fake_nccl_faults).
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "settings.hpp"

namespace fake_nccl {

enum class Action {
  delay,
  hang,
  fail,
  kill,
  stop,
  launch_delay,
  launch_hang,
  kernel_delay,
  kernel_hang,
  kernel_stuck,
  kernel_kill,
  kernel_stop,
  async,
  version
};

struct Fault {
  Action action;
  long value = 0;  ///< ms, or a version's code
  ncclResult_t result = ncclSuccess;
};

using Stop = std::function<bool()>;

/// Whether there are any: what is called all the time asks this first, and is not counted without.
bool faults_are_ordered();
/// Counts a call of @p rank; what was ordered for it.
std::vector<Fault> take_faults(std::string_view function, int rank);

/// Suffers those that concern the call itself: waits (until @p stop, if it hangs), or dies. What it shall return
/// instead of doing anything, if so ordered.
std::optional<ncclResult_t> suffer_call(const std::vector<Fault>& faults, const Stop& stop);
/// Those between call and stream.
void suffer_launch(const std::vector<Fault>& faults, const Stop& stop);
/// Those on the stream.
void suffer_kernel(const std::vector<Fault>& faults, const Stop& stop);

/// Sleeps until @p ready, first short, then 100 us at a time. False: @p stop came first.
bool wait_until(const Stop& ready, const Stop& stop);

}  // namespace fake_nccl
