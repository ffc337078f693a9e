// Results to standard output. An incomplete write is an error: a full disk or closed pipe must not look like success.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::tools {

/// Writes all of @p text to standard output. Throws Error(system). A closed pipe is an error only where SIGPIPE is
/// ignored, as in ddp-info's main().
void write_standard_output(std::string_view text);

// What a short program writes.

struct ProgramRun {
  std::vector<std::string> command;  ///< found by PATH unless it has a slash
  bool clean = false;                ///< without this process' environment
  bool errors = true;                ///< with what it writes to standard error
};

struct ProgramOutput {
  int status = -1;   ///< as a shell reports it; -1: it could not be started, or did not end in time
  std::string text;  ///< at most 64 KiB; with status -1 why
};

/// Runs a program without input. It is killed at @p deadline.
ProgramOutput run_program(const ProgramRun& run, Deadline deadline);

}  // namespace ddp::tools
