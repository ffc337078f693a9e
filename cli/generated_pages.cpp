#include "cli/generated_pages.hpp"

#include <algorithm>
#include <cctype>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/version.hpp>

namespace ddp::cli {
namespace {

/// Escapes text for roff. Dashes stay ASCII, so that a shell understands copied ones.
std::string escaped(std::string_view text) {
  std::string result;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) result += "\\&";  // otherwise a roff request
    line_begins = c == '\n';
    switch (c) {
      case '\\': result += "\\e"; break;
      case '-': result += "\\-"; break;
      case '\'': result += "\\(aq"; break;
      case '^': result += "\\(ha"; break;
      case '~': result += "\\(ti"; break;
      default: result += c;
    }
  }
  return result;
}

std::string section(std::string_view heading) { return fmt::format(".SH {}\n", heading); }

std::string terms(const std::vector<TextPair>& pairs) {
  std::string text;
  for (const TextPair& pair : pairs)
    text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", escaped(pair.term), escaped(pair.meaning));
  return text;
}

std::string terms(std::string_view heading, const std::vector<TextPair>& pairs) {
  return pairs.empty() ? "" : section(heading) + terms(pairs);
}

std::string paragraphs(const std::vector<std::string>& texts) {
  std::string text;
  for (const std::string& each : texts) text += (text.empty() ? "" : ".PP\n") + escaped(each) + "\n";
  return text;
}

std::string option_text(const OptionEntry& entry) {
  std::string names = entry.short_name.empty() ? "" : fmt::format("\\fB{}\\fR, ", escaped(entry.short_name));
  names += fmt::format("\\fB{}\\fR", escaped(entry.name));
  if (!entry.is_flag()) {
    const std::string value = fmt::format("\\fI{}\\fR", escaped(entry.value_name));
    names += entry.value_optional ? fmt::format("[={}]", value) : " " + value;
  }
  std::string text = fmt::format(".TP\n{}\n{}\n", names, escaped(entry.description));
  if (!entry.pet_name.empty()) text += fmt::format("Default in \\fB{}\\fR.\n", escaped(entry.pet_name));
  return text;
}

/// @param groups whether each group gets a heading
std::string options_text(const OptionTable& table, bool groups) {
  std::set<std::string> names;
  for (const OptionEntry& entry : table.entries()) {
    if (!entry.group.empty()) names.insert(entry.group);
  }
  groups = groups && names.size() > 1;
  std::string text;
  std::string group;
  for (const OptionEntry& entry : table.entries()) {
    if (entry.group.empty()) continue;
    if (groups && entry.group != group) text += fmt::format(".SS {}\n", escaped(entry.group));
    group = entry.group;
    text += option_text(entry);
  }
  return text;
}

std::string usage_lines(const ProgramText& text) {
  std::string lines;
  for (const std::string& form : text.usage) {
    lines += fmt::format("{}\\fB{}\\fR {}\n", lines.empty() ? "" : ".br\n", escaped(text.name), escaped(form));
  }
  return lines;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string names_of(const OptionEntry& entry, std::string_view separator) {
  return entry.short_name.empty() ? entry.name : fmt::format("{}{}{}", entry.name, separator, entry.short_name);
}

/// A bash case for an option's value, matching @p command, a blank and the option's name.
std::string value_case(const OptionEntry& entry, const std::string& command) {
  std::string words;
  switch (entry.kind) {
    case ValueKind::text: break;
    case ValueKind::word: words = fmt::format("-W '{}'", fmt::join(entry.words, " ")); break;
    case ValueKind::printed: words = fmt::format("-W \"$({} 2>/dev/null)\"", entry.words.front()); break;
    case ValueKind::file: words = "-f"; break;
    case ValueKind::folder: words = "-d"; break;
  }
  std::string pattern = fmt::format("\"{} {}\"", command, entry.name);
  if (!entry.short_name.empty()) pattern += fmt::format("|\"{} {}\"", command, entry.short_name);
  if (words.empty()) return fmt::format("    {}) ;;\n", pattern);
  const char* const files = words == "-f" || words == "-d" ? "compopt -o filenames 2>/dev/null; " : "";
  return fmt::format("    {}) {}mapfile -t COMPREPLY < <(compgen {} -- \"$current\") ;;\n", pattern, files, words);
}

/// A table's option names, and the cases for options with a value.
struct Offered {
  std::vector<std::string> names;
  std::vector<std::string> with_value;
  std::string optional;  ///< the part of a loop over words that skips options whose optional value is absent
  std::string cases;
};

Offered offered(const OptionTable& table, const std::string& command) {
  // An optional value must follow '='.
  constexpr const char* kOptional = R"(      {}) [[ ${{COMP_WORDS[i + 1]}} == = ]] || {{ ((++i)); continue; }} ;;&
)";
  Offered all;
  for (const OptionEntry& entry : table.entries()) {
    if (entry.group.empty()) continue;
    all.names.push_back(names_of(entry, " "));
    if (entry.is_flag()) continue;
    all.with_value.push_back(names_of(entry, "|"));
    if (entry.value_optional) all.optional += fmt::format(kOptional, all.with_value.back());
    all.cases += value_case(entry, command);
  }
  return all;
}

/// The script with PROGRAM, FUNCTION and other words in capitals replaced.
std::string filled(std::string script, const std::vector<std::pair<std::string_view, std::string>>& words) {
  for (const auto& [word, text] : words) {
    for (auto at = script.find(word); at != std::string::npos; at = script.find(word, at + text.size()))
      script.replace(at, word.size(), text);
  }
  return script;
}

std::string function_of(std::string program) {
  std::replace(program.begin(), program.end(), '-', '_');
  return program;
}

constexpr const char* kLauncherScript =
    R"(# bash completion for @program; written by '@program --generate-bash-completion'
# Offers the values of option $1 that begin with $2.
_@function_value() {
  local current=$2
  COMPREPLY=()
  case " $1" in
@cases  esac
}

_@function() {
  local current=${COMP_WORDS[COMP_CWORD]} i=1 option
  COMPREPLY=()
  # bash makes words of their own of '=' and of what follows.
  while ((i < COMP_CWORD)); do
    option=${COMP_WORDS[i]//_/-}
    case $option in
      --) ((++i)); break ;;
@optional      @with_value)
        if [[ ${COMP_WORDS[i + 1]} == = ]]; then ((i += 2)); else ((++i)); fi
        if ((i >= COMP_CWORD)); then
          [[ $current == = ]] && current=
          _@function_value "$option" "$current"
          return
        fi
        ((++i))
        ;;
      -?*) ((++i)) ;;
      *) break ;;
    esac
  done
  if ((i < COMP_CWORD)); then  # the program has begun
    if declare -F _comp_command_offset >/dev/null; then
      _comp_command_offset "$i"
    elif declare -F _command_offset >/dev/null; then
      _command_offset "$i"
    else
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
  elif [[ $current == -* && ${COMP_WORDS[COMP_CWORD - 1]} != -- ]]; then
    mapfile -t COMPREPLY < <(compgen -W '@names' -- "$current")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current"; [[ -n $current ]] && compgen -c -- "$current")
  fi
}
complete -F _@function @program
)";

constexpr const char* kToolScript = R"(# bash completion for @program; written by '@program --generate-bash-completion'
_@function() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command= words='@names' operands=
  COMPREPLY=()
  # bash makes a word of its own of '='.
  if [[ $current == = ]]; then
    current=
  elif [[ $previous == = ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
@commands  case "$command ${previous//_/-}" in
@cases    *)
      if [[ -n $operands && $current != -* ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen "$operands" -- "$current")
      else
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
      fi
      ;;
  esac
}
complete -F _@function @program
)";

}  // namespace

std::string manual_page(const OptionTable& table, std::span<const Command> commands) {
  const ProgramText& about = table.text();
  std::string page =
      fmt::format(".TH {} 1 \"\" \"libddp {}\" \"User Commands\"\n", escaped(upper(about.name)), DDP_VERSION_STRING);
  page += section("NAME") + fmt::format("{} \\- {}\n", escaped(about.name), escaped(about.summary));
  page += section("SYNOPSIS") + usage_lines(about);
  page += section("DESCRIPTION") + paragraphs(about.description);
  if (!about.operands.empty()) page += ".PP\n" + escaped(about.operands) + "\n";
  std::vector<TextPair> examples = about.examples;
  std::string commands_text;
  for (const Command& command : commands) {
    if (command.table == nullptr) continue;
    const ProgramText& text = command.table->text();
    commands_text += fmt::format(".SS {}\n", escaped(command.name)) + usage_lines(text) + ".PP\n" +
                     paragraphs(text.description) + options_text(*command.table, false);
    if (!text.exit_statuses.empty()) commands_text += ".PP\nExit status:\n" + terms(text.exit_statuses);
    examples.insert(examples.end(), text.examples.begin(), text.examples.end());
  }
  page += section("OPTIONS") + options_text(table, true);
  if (!commands_text.empty()) page += section("COMMANDS") + commands_text;
  page += terms("ENVIRONMENT", about.variables) + terms("SIGNALS", about.signals) +
          terms("\"EXIT STATUS\"", about.exit_statuses) + terms("EXAMPLES", examples);
  std::vector<std::string> others;
  for (const std::string& other : about.see_also) others.push_back(fmt::format("\\fB{}\\fR(1)", escaped(other)));
  return page + section("\"SEE ALSO\"") + fmt::format("{}\n", fmt::join(others, ",\n"));
}

namespace {

std::string launcher_completion(const OptionTable& table) {
  const Offered all = offered(table, "");
  return filled(kLauncherScript, {{"@program", table.text().name},
                                  {"@function", function_of(table.text().name)},
                                  {"@cases", all.cases},
                                  {"@optional", all.optional},
                                  {"@with_value", fmt::format("{}", fmt::join(all.with_value, "|"))},
                                  {"@names", fmt::format("{}", fmt::join(all.names, " "))}});
}

std::string tool_completion(const OptionTable& table, std::span<const Command> commands) {
  Offered all = offered(table, "");
  std::string choice;
  for (const Command& command : commands) {
    all.names.push_back(command.name);
    const Offered its = command.table == nullptr ? Offered{} : offered(*command.table, command.name);
    all.cases += its.cases;
    const char* const operands = command.operands == ValueKind::file     ? " operands=-f"
                                 : command.operands == ValueKind::folder ? " operands=-d"
                                                                         : "";
    choice += fmt::format("      {}) words='{}'{} ;;\n", command.name, fmt::join(its.names, " "), operands);
  }
  if (!choice.empty()) {
    choice = "  if ((COMP_CWORD > 1)); then\n    command=${COMP_WORDS[1]}\n    case $command in\n" + choice +
             "      *) words= ;;\n    esac\n  fi\n";
  }
  return filled(kToolScript, {{"@program", table.text().name},
                              {"@function", function_of(table.text().name)},
                              {"@commands", choice},
                              {"@cases", all.cases},
                              {"@names", fmt::format("{}", fmt::join(all.names, " "))}});
}

}  // namespace

std::string bash_completion(const OptionTable& table, bool launches, std::span<const Command> commands) {
  return launches ? launcher_completion(table) : tool_completion(table, commands);
}

void add_page_options(OptionTable& table, bool& asked) {
  table.begin_group("");
  table.add_flag("--generate-man", "Print the manual page.", asked);
  for (const char* shell : {"bash", "zsh", "fish"})
    table.add_flag(fmt::format("--generate-{}-completion", shell), fmt::format("Print the completion for {}.", shell),
                   asked);
}

std::optional<std::string> asked_page(const OptionTable& table, bool launches, std::span<const Command> commands) {
  if (table.given("--generate-man")) return manual_page(table, commands);
  if (table.given("--generate-bash-completion")) return bash_completion(table, launches, commands);
  if (table.given("--generate-zsh-completion")) return zsh_completion(table, launches, commands);
  if (table.given("--generate-fish-completion")) return fish_completion(table, launches, commands);
  return std::nullopt;
}

}  // namespace ddp::cli
