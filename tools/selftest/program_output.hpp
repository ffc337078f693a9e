// What a short program says, for the check of one node.
#pragma once

#include <string>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::selftest {

struct ProgramOutput {
  int status = -1;   ///< as a shell reports it; -1: it could not be started, or did not end in time
  std::string text;  ///< both streams, at most 64 KiB; why, if it could not be started
};

/// Runs a program with its arguments, found by PATH unless it has a slash. @param clean without this process'
/// environment, as the plugin runs ddp-step.
ProgramOutput run_program(const std::vector<std::string>& command, bool clean, Deadline deadline);

}  // namespace ddp::selftest
