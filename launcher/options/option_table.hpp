// The one table of ddprun's options: parsing, help, manual page and completion all come from it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/env_table.hpp"
#include "options/argument_split.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ddp::launcher {

/// What a shell may offer for an option's value.
enum class ValueKind { text, word, file, folder };

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
  ValueKind kind = ValueKind::text;
  std::vector<std::string> words;  ///< for ValueKind::word
  Reader read;                     ///< empty for a flag that is asked for with given()
  CLI::Option* option = nullptr;
  bool from_environment = false;  ///< the PET variable was used

  bool is_flag() const { return value_name.empty(); }

  /// torchrun has this option, and gives it a default by a PET_* variable.
  OptionEntry& torchrun();
  /// torchrun has this option, without a variable.
  OptionEntry& torchrun_without_variable();
  OptionEntry& completes(ValueKind value_kind);
  OptionEntry& choices(std::vector<std::string> accepted);
  OptionEntry& optional_value();
};

class OptionTable {
 public:
  OptionTable();
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;
  ~OptionTable();

  /// Heading of the options added from now on; empty: they are hidden.
  void begin_group(std::string heading);
  /// @p names "--nnodes" or "-r,--redirects".
  OptionEntry& add_value(std::string_view names, std::string value_name, std::string description,
                         OptionEntry::Reader read);
  /// A flag sets @p target; so does its variable with a number other than 0.
  OptionEntry& add_flag(std::string_view names, std::string description, bool& target);

  std::vector<OptionShape> shapes() const;
  const std::deque<OptionEntry>& entries() const { return entries_; }
  /// The help without examples, for a terminal of 100 columns.
  std::string help() const;

  /// Takes the options of the command line in the plain form of split_arguments(). Their values are not yet read.
  void parse(std::vector<std::string> options);
  /// Reads the values: those of the command line, the last of each option, else those of the variables.
  void read_values(const base::Environment& environment);

  /// Whether the option is on the command line.
  bool given(std::string_view name) const;
  /// Whether the option is on the command line or its variable is set.
  bool said(std::string_view name) const;

 private:
  const OptionEntry& entry(std::string_view name) const;
  OptionEntry& add(std::string_view names, OptionEntry entry);

  std::unique_ptr<CLI::App> app_;
  std::string group_;
  std::deque<OptionEntry> entries_;  // addresses stay valid
};

}  // namespace ddp::launcher
