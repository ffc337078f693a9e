// The manual page and the completions of shells, written from the tables of options so that they cannot fall behind.
#pragma once

#include <optional>
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

/// @p launches: another program and its arguments follow, as with ddprun.
std::string bash_completion(const OptionTable& table, bool launches, std::span<const Command> commands = {});
std::string zsh_completion(const OptionTable& table, bool launches, std::span<const Command> commands = {});
std::string fish_completion(const OptionTable& table, bool launches, std::span<const Command> commands = {});

/// Hidden options that ask for the above, as --generate-man; @p asked tells of any.
void add_page_options(OptionTable& table, bool& asked);
/// The page that the command line asks for.
std::optional<std::string> asked_page(const OptionTable& table, bool launches, std::span<const Command> commands = {});

}  // namespace ddp::cli
