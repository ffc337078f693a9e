// Lists of hosts as mpirun, horovodrun and Slurm write them: -H and --hostfile; and words as a shell divides them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "options/launch_options.hpp"

namespace ddp::launcher {

/// Blanks divide; quotes of both kinds and backslashes keep, as in sh(1). Nothing is expanded: $, ~ and * stay. Throws
/// ExitError(kExitUsage) that names @p option for no word, an open quote, and a backslash at the end.
std::vector<std::string> split_shell_words(const std::string& option, const std::string& text);

/// Places in --agent-command.
inline constexpr std::string_view kHostPlace = "{host}";
inline constexpr std::string_view kCommandPlace = "{command}";
/// Its words; throws Error for places that are no such or come twice in a word, and a program's name with one.
std::vector<std::string> parse_agent_command(const std::string& option, const std::string& text);

/// @p word in quotes that any shell takes off again, csh too.
std::string shell_quoted(std::string_view word);

/// The variable that tells an agent which host of its frontend's list it is: "NODE:RANKS", or
/// "NODE:RANKS:here" on the frontend's host; RANKS 0: as --nproc-per-node says.
inline constexpr const char* kAgentHostVariable = "DDPRUN_AGENT_HOST";

/// A host as one entry of a list has it.
struct HostMention {
  std::string name;
  int slots = 0;      ///< ranks; 0: the entry has no number
  int max_slots = 0;  ///< 0: no limit
  bool operator==(const HostMention&) const = default;
};

/// "n0:2,n[1-3]:4,[fd00::7]:2". Throws ExitError(kExitUsage) that names @p source.
std::vector<HostMention> parse_host_list(const std::string& source, const std::string& text);

/// A line for each host: such an entry, or "n0 slots=2 max_slots=4"; '#' begins a comment. Throws likewise, with the
/// line.
std::vector<HostMention> parse_host_file(const std::string& source, const std::string& text);

/// Each host once, in the order of the first mentions. Slots of several mentions add up; where none has slots, and a
/// host is mentioned several times (PBS' node file), each mention is one. Throws likewise where some have slots and
/// others none, for more ranks than max_slots, and for too many hosts or ranks.
std::vector<HostEntry> merge_hosts(const std::string& source, const std::vector<HostMention>& mentions);

}  // namespace ddp::launcher
