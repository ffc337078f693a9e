// The prose that help and manual page share.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// A term and its explanation: an example and its purpose, an exit status and its meaning.
struct TextPair {
  std::string_view term;
  std::string_view meaning;
};

struct ProgramText {
  std::string usage;
  std::string summary;  ///< a phrase for the NAME section
  std::string description;
  std::string program;  ///< how PROGRAM is started
  std::span<const TextPair> examples;
  std::span<const TextPair> signals;
  std::span<const TextPair> exit_statuses;
  std::span<const TextPair> variables;  ///< of the environment, without the PET_* ones
};

const ProgramText& program_text();

/// @p text broken at blanks, for 100 columns; lines after the first are indented by @p indent, where the first begins.
std::string wrapped(std::string_view text, std::size_t indent);

/// What follows the options in the help.
std::string help_footer();

}  // namespace ddp::launcher
