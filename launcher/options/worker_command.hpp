// From a program and its arguments to what each rank executes: interpreters, PATH, torchrun's macros.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// What is wrong with the line of the script @p path, as a hint: the interpreter is not on this host, or its name ends
/// in a carriage return, as Windows' editors leave it. Empty where nothing is, where the file is no script, and where
/// it cannot be read.
std::string script_line_fault(const std::string& path);

// Finds the program before anything is started, so that a wrong name is one clear line and not one failure per rank.

/// The file to execute for @p name: @p name itself when it contains a slash, else the first executable file of that
/// name in the folders of @p search_path (colon-separated; an empty part means the current folder), as execvp(3) does.
/// Throws ExitError with kExitNotFound when there is no such file, kExitNotExecutable when it cannot be executed.
std::string find_program(const std::string& name, const std::string& search_path);

// From what the user wrote to what each rank executes: interpreter, module, program, ${local_rank}.

struct WorkerCommand {
  std::string path;                      ///< file to execute
  std::vector<std::string> arguments{};  ///< argv, with ${local_rank} not yet replaced
  std::string display;                   ///< "train.py": for reports
  bool python = false;                   ///< an interpreter runs it, as far as the command tells
  std::string interpreter{};  ///< "/usr/bin/python3 (from PATH; VIRTUAL_ENV is not set)"; empty: none is known
};

/// Looks at this node's files, so every agent calls it for itself.
/// ProgramMode::automatic: an ELF file, or an executable file with a "#!" line that is no Python script, is executed
/// directly; what is no file here but a program in PATH too; anything else is a script for the interpreter, which is
/// PYTHON_EXEC or else python3 or python from PATH, with -u.
/// Throws ExitError: kExitNotFound and kExitNotExecutable, naming the file and what to do.
WorkerCommand resolve_command(const LaunchOptions& options, const base::Environment& environment);

/// Where the program stands among the arguments of an interpreter: the script, -m or -c. Nothing for what is not a
/// Python program, and for options of the interpreter after which something else than the program is run.
std::optional<std::size_t> program_position(const WorkerCommand& command);

/// The arguments of one rank: torchrun's macro local_rank replaced by the rules of options/string_template.hpp.
std::vector<std::string> arguments_of(const WorkerCommand& command, int local_rank);

}  // namespace ddp::launcher
