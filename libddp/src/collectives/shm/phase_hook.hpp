// Where tests stop or kill a rank.
#pragma once

#include <cstdint>

namespace ddp::collectives::shm {

enum class Phase : std::uint8_t {
  connecting,      ///< known to the leader, without the segment
  before_copy,     ///< of its data into its slot
  before_show,     ///< copied, and nobody knows
  before_reduce,   ///< the others' data are there
  in_copy_out,     ///< before it copies results out
  between_stages,  ///< of a hierarchy: an earlier stage of a segment is over, the next not posted
};

/// Null but in tests: a call is a test of a register then.
struct PhaseHook {
  void (*call)(Phase phase, void* context) = nullptr;
  void* context = nullptr;
  void operator()(Phase phase) const {
    if (call != nullptr) [[unlikely]]
      call(phase, context);
  }
};

}  // namespace ddp::collectives::shm
