// Divides a command line into a program's own options and other words.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddp::cli {

/// How an option is spelled: "--nproc-per-node" or "-v", and whether a value follows.
struct OptionShape {
  std::string name;
  bool takes_value;
  /// Preferred where an abbreviation fits several options: scripts written for torchrun keep their meaning.
  bool of_torchrun = false;
  bool hidden = false;          ///< only its full name means it, and it is not suggested
  bool value_optional = false;  ///< given as "--name=value" only; else it is empty
};

struct SplitRules {
  std::string program = "ddprun";  ///< whose --help lists the options
  /// What to write instead of an option ("-np") of other programs, which this one does not know; empty: nothing is
  /// known.
  std::string (*hint_for_foreign_option)(std::string_view name) = nullptr;
  bool interleaved = false;  ///< options may also stand behind other words
  /// A name of several letters behind one dash, and the option that it means: "-np".
  std::pair<std::string_view, std::string_view> one_dash{};
};

struct SplitArguments {
  /// Options in one plain form: the full name with dashes, its value as the next element.
  std::vector<std::string> options;
  /// Everything from the first word on that is not an option; of interleaved ones the words that are none.
  std::vector<std::string> command;
  /// What to do if there is no such program: it stands behind an option that may have a value. Else empty.
  std::string program_hint{};
};

/// Accepts what Python's argparse accepts for torchrun: "--name value", "--name=value", underscores for dashes, any
/// unambiguous beginning of a long name, and short options with their value or further short ones in one word: "-r3",
/// "-r=3", "-mr3". "--" ends the options. What follows the first non-option belongs to the program. A separate value
/// must not look like an option, unless it is a negative number or has a space: more likely a value was forgotten.
/// Throws UsageError for unknown or ambiguous options (with the closest known one), for missing or
/// unwanted values, and for a value behind a blank where only "--name=value" gives one.
SplitArguments split_arguments(std::span<const std::string> arguments, std::span<const OptionShape> known,
                               const SplitRules& rules);

}  // namespace ddp::cli
