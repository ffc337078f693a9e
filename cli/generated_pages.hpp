// The manual page and the completion for bash, written from the tables of options so that they cannot fall behind.
#pragma once

#include <span>
#include <string>

#include "cli/option_table.hpp"

namespace ddp::cli {

/// A command of a program, as "topo" of ddp-info.
struct Command {
  std::string name;
  const OptionTable* table;              ///< null: it has no options
  ValueKind operands = ValueKind::text;  ///< what a shell may offer for words that are no options
};

/// roff with the man(7) macros. @p commands of the program, each with a section.
std::string manual_page(const OptionTable& table, std::span<const Command> commands = {});

/// For a program that is followed by another one and its arguments, as ddprun.
std::string launcher_completion(const OptionTable& table);

/// For any other program.
std::string tool_completion(const OptionTable& table, std::span<const Command> commands = {});

}  // namespace ddp::cli
