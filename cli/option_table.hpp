// The one table of a program's options: parsing, help, manual page and completion all come from it.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env_table.hpp"
#include "cli/argument_split.hpp"

namespace ddp::cli {

/// A term and its explanation: an example and its purpose, an exit status and its meaning.
struct TextPair {
  std::string_view term;
  std::string_view meaning;
};

/// The prose that help and manual page share.
struct ProgramText {
  std::string name;                ///< "ddprun", or with its command: "ddp-info topo"
  std::vector<std::string> usage;  ///< without the name: "[OPTIONS] PROGRAM [ARGUMENTS...]"; a line for each form
  std::string summary{};           ///< a phrase for the NAME section
  std::vector<std::string> description{};  ///< paragraphs
  std::string operands{};                  ///< a paragraph on what is not an option, for the manual page
  std::string remarks{};                   ///< lines of the help behind the options
  std::vector<TextPair> examples{};
  std::vector<TextPair> signals{};
  std::vector<TextPair> exit_statuses{};
  std::vector<TextPair> variables{};  ///< of the environment, without the PET_* ones
  std::vector<std::string> see_also{};
  int example_columns = 48;  ///< of examples' terms
};

/// What a shell may offer for a value: nothing, words, files, folders, or what a command prints.
enum class ValueKind { text, word, file, folder, printed };

struct OptionEntry {
  /// Called with where the value comes from ("--nnodes" or "PET_NNODES") and the value; throws ExitError.
  using Reader = std::function<void(const std::string& source, const std::string& text)>;

  std::string name;         ///< "--redirects"
  std::string short_name;   ///< "-r"; empty: none
  std::string value_name;   ///< "WHICH"; empty for a flag
  std::string description;  ///< sentences for the help
  std::string group;        ///< heading in the help; empty: not shown
  std::string pet_name;     ///< variable with the default: "PET_REDIRECTS"; empty: none
  bool of_torchrun = false;
  bool value_optional = false;  ///< "--name=VALUE" or "--name" alone, which gives an empty value
  bool repeatable = false;      ///< all its values count, not only the last one
  ValueKind kind = ValueKind::text;
  std::vector<std::string> words;    ///< for ValueKind::word; for ValueKind::printed the command
  Reader read;                       ///< of a flag: sets its target
  std::vector<std::string> results;  ///< values on the command line; of a flag empty ones
  bool from_environment = false;     ///< the PET variable was used

  bool is_flag() const { return value_name.empty(); }

  /// torchrun has this option, and gives it a default by a PET_* variable.
  OptionEntry& torchrun();
  /// torchrun has this option, without a variable.
  OptionEntry& torchrun_without_variable();
  OptionEntry& completes(ValueKind value_kind);
  OptionEntry& choices(std::vector<std::string> accepted);
  /// Completed by what a shell command prints.
  OptionEntry& choices_of(std::string command);
  OptionEntry& optional_value();
  OptionEntry& repeated();
};

class OptionTable {
 public:
  explicit OptionTable(ProgramText text) : text_(std::move(text)) {}

  /// Heading of the options added from now on; empty: they are hidden.
  void begin_group(std::string heading) { group_ = std::move(heading); }
  /// @p names "--nnodes" or "-r,--redirects".
  OptionEntry& add_value(std::string_view names, std::string value_name, std::string description,
                         OptionEntry::Reader read);
  /// A flag sets @p target; so does its variable with a number other than 0.
  OptionEntry& add_flag(std::string_view names, std::string description, bool& target);

  /// -h, --help.
  void add_help();

  const ProgramText& text() const { return text_; }
  std::vector<OptionShape> shapes() const;
  const std::deque<OptionEntry>& entries() const { return entries_; }
  /// For a terminal of 100 columns.
  std::string help() const;

  /// Takes the options of the command line in the plain form of split_arguments(). Their values are not yet read.
  void parse(const std::vector<std::string>& options);
  /// Reads the values: those of the command line, else those of the variables.
  void read_values(const base::Environment& environment);
  /// All of the above for a program whose options and words may be mixed and that reads no variables: returns the
  /// words. With --help, no value has been read. Throws ExitError.
  std::vector<std::string> read(std::span<const std::string> arguments);
  /// The same for a program that takes options only.
  void read_options(std::span<const std::string> arguments);

  /// Whether the option is on the command line.
  bool given(std::string_view name) const { return !entry(name).results.empty(); }
  /// Whether the option is on the command line or its variable is set.
  bool said(std::string_view name) const { return given(name) || entry(name).from_environment; }

 private:
  const OptionEntry& entry(std::string_view name) const;
  OptionEntry& add(std::string_view names, OptionEntry entry);

  ProgramText text_;
  std::string group_ = "Options";
  std::deque<OptionEntry> entries_;  // addresses stay valid
};

/// @p text broken at blanks, for 100 columns; lines after the first are indented by @p indent, where the first begins.
std::string wrapped(std::string_view text, std::size_t indent);

}  // namespace ddp::cli
