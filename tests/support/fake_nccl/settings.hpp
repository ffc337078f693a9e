// How the double behaves: environment and fake_nccl_set_*; and what it has to complain of.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/nccl/nccl_library.hpp"

/// For the functions that the library exports; all else is hidden.
#define FAKE_NCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_nccl {

using namespace ddp::collectives::nccl;

struct Settings {
  std::string folder;
  std::atomic<int> version;
  std::atomic<bool> strict;
  std::atomic<bool> report_peers;
  std::atomic<int> device_slots;
  std::atomic<bool> lazy_connect;
  std::atomic<unsigned> jitter;

  Settings();
};
/// Of the library (default_version.cpp).
extern const int kDefaultVersion;
Settings& settings();

/// Sleeps for a random time of up to 2 ms where jitter is on.
void jitter();

/// What ncclGetLastError returns; and a line for fake_nccl_complaints and standard error in strict mode.
void complain(const std::string& text);
/// ncclGetLastError only: an error that NCCL finds itself.
void note_error(const std::string& text);

// Faults that tests order by function, rank and number of the call (fake_nccl_faults).

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
