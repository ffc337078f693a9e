// Whether another process of this host runs, as the kernel has it: one that is stopped and one that waits for a
// processor are equally silent.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/message_fields.hpp"

namespace ddp::base {

/// How processes of one host find each other in /proc.
struct ProcessNumber {
  pid_t pid = 0;
  std::uint64_t space = 0;  ///< the PID namespace in which it has that number; 0: unknown, or /proc is of another one
  bool operator==(const ProcessNumber&) const = default;
};
constexpr auto description(const ProcessNumber*) {
  return describe({"process"}, field<&ProcessNumber::pid>(), field<&ProcessNumber::space>());
}

enum class ProcessLife {
  unknown,  ///< it is in another namespace, or /proc is not readable
  runs,     ///< or sleeps, or waits for a processor, memory or a disk
  stopped,  ///< by a signal or a debugger
  gone,
};

ProcessNumber own_process();
ProcessLife life_of(const ProcessNumber& process);

}  // namespace ddp::base
