// Completions for zsh and fish. Both shells match options and values themselves, so that a line for each option is
// enough.
#include <cctype>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/generated_pages.hpp"

namespace ddp::cli {
namespace {

/// With a backslash before each of @p special.
std::string escaped(std::string_view text, std::string_view special) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

std::string in_zsh_quotes(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

std::string in_fish_quotes(std::string_view text) { return fmt::format("'{}'", escaped(text, "\\'")); }

/// The first sentence.
std::string_view brief(std::string_view description) {
  for (std::size_t at = description.find(". "); at != std::string_view::npos; at = description.find(". ", at + 1)) {
    if (at + 2 < description.size() && std::isupper(static_cast<unsigned char>(description[at + 2])) != 0)
      return description.substr(0, at);
  }
  return description.ends_with('.') ? description.substr(0, description.size() - 1) : description;
}

/// What _arguments does for a value or an operand.
std::string zsh_action(ValueKind kind, const std::vector<std::string>& words) {
  switch (kind) {
    case ValueKind::text: return " ";
    case ValueKind::word: return fmt::format("({})", fmt::join(words, " "));
    case ValueKind::printed: return fmt::format("{{compadd -- ${{(f)\"$({} 2>/dev/null)\"}}}}", words.front());
    case ValueKind::file: return "_files";
    case ValueKind::folder: return "_files -/";
  }
  return {};
}

/// _arguments with the table's options and what @p more says of other words.
std::string zsh_arguments(const OptionTable& table, std::string_view more) {
  std::string text = "_arguments -s -S -A '-*'";
  for (const OptionEntry& entry : table.entries()) {
    if (entry.group.empty()) continue;
    const char* const joint = entry.is_flag() ? "" : entry.value_optional ? "=-" : "=";
    std::string what = fmt::format("[{}]", escaped(brief(entry.description), "[]\\"));
    if (!entry.is_flag())
      what += fmt::format("{}{}:{}", entry.value_optional ? "::" : ":", escaped(entry.value_name, ":\\"),
                          zsh_action(entry.kind, entry.words));
    text += " \\\n    ";
    if (entry.short_name.empty()) {
      text += in_zsh_quotes((entry.repeatable ? "*" : "") + entry.name + joint + what);
    } else {
      const std::string others = entry.repeatable ? "*" : fmt::format("({} {})", entry.short_name, entry.name);
      text += fmt::format("'{}'{{{}{},{}{}}}{}", others, entry.short_name, entry.is_flag() ? "" : "+", entry.name,
                          joint, in_zsh_quotes(what));
    }
  }
  return text + std::string(more) + "\n";
}

/// "complete" with the table's options, where @p condition holds.
std::string fish_options(const OptionTable& table, const std::string& program, std::string_view condition) {
  std::string text;
  for (const OptionEntry& entry : table.entries()) {
    if (entry.group.empty()) continue;
    std::string offer;
    switch (entry.kind) {
      case ValueKind::text: break;
      case ValueKind::word: offer = fmt::format("{}", fmt::join(entry.words, " ")); break;
      case ValueKind::printed: offer = fmt::format("({} 2>/dev/null)", entry.words.front()); break;
      case ValueKind::file: break;
      case ValueKind::folder: offer = "(__fish_complete_directories)"; break;
    }
    text += fmt::format("complete -c {} -n {} -l {}", program, in_fish_quotes(condition), entry.name.substr(2));
    if (!entry.short_name.empty()) text += " -s " + entry.short_name.substr(1);
    if (!entry.is_flag() && !entry.value_optional) text += entry.kind == ValueKind::file ? " -r -F" : " -x";
    if (!offer.empty()) text += " -a " + in_fish_quotes(offer);
    text += fmt::format(" -d {}\n", in_fish_quotes(brief(entry.description)));
  }
  return text;
}

/// Whether the words before the cursor are options and their values. No argument: which options take the next word.
constexpr const char* kBeforeProgram = R"(function __{0}_before_program
    set -l words (commandline -opc)
    set -e words[1]
    while set -q words[1]
        switch (string replace -a _ - -- $words[1])
            case --
                return 1
            case {1}
                set -e words[1]
                set -q words[1]; and set -e words[1]
            case '-*'
                set -e words[1]
            case '*'
                return 1
        end
    end
    return 0
end
)";

}  // namespace

std::string zsh_completion(const OptionTable& table, bool launches, std::span<const Command> commands) {
  const std::string& program = table.text().name;
  std::string text = fmt::format("#compdef {0}\n# Written by '{0} --generate-zsh-completion'.\n", program);
  if (launches)
    return text + zsh_arguments(table,
                                " \\\n    '(-)1:program:{_files; _command_names -e}' \\\n"
                                "    '*::argument:_normal'");
  if (commands.empty()) return text + zsh_arguments(table, "");
  std::vector<std::string> names;
  text += "if (( CURRENT > 2 )); then\n  shift words; (( CURRENT-- ))\n  case $words[1] in\n";
  for (const Command& command : commands) {
    names.push_back(command.name);
    if (command.table == nullptr) continue;
    const std::string operands = command.operands == ValueKind::text
                                     ? ""
                                     : fmt::format(" \\\n    '*:file:{}'", zsh_action(command.operands, {}));
    text += fmt::format("  {}) {}  ;;\n", command.name, zsh_arguments(*command.table, operands));
  }
  return text + "  esac\nelse\n" + zsh_arguments(table, fmt::format(" '1:command:({})'", fmt::join(names, " "))) +
         "fi\n";
}

std::string fish_completion(const OptionTable& table, bool launches, std::span<const Command> commands) {
  const std::string& program = table.text().name;
  std::string text =
      fmt::format("# Completion of {0} for fish; written by '{0} --generate-fish-completion'\n", program);
  if (launches) {
    std::vector<std::string> with_value;
    for (const OptionEntry& entry : table.entries()) {
      if (entry.group.empty() || entry.is_flag() || entry.value_optional) continue;
      with_value.push_back(entry.name);
      if (!entry.short_name.empty()) with_value.push_back(entry.short_name);
    }
    const std::string before = fmt::format("__{}_before_program", program);
    return text + fmt::format(kBeforeProgram, program, fmt::join(with_value, " ")) +
           fish_options(table, program, before) +
           fmt::format("complete -c {} -n {} -a '(__fish_complete_command)'\n", program, before);
  }
  text += fmt::format("complete -c {} -f\n", program);
  text += fish_options(table, program, commands.empty() ? "true" : "__fish_use_subcommand");
  for (const Command& command : commands) {
    text += fmt::format("complete -c {} -n __fish_use_subcommand -a {}\n", program, command.name);
    const std::string condition = "__fish_seen_subcommand_from " + command.name;
    if (command.operands == ValueKind::file) text += fmt::format("complete -c {} -n '{}' -F\n", program, condition);
    if (command.operands == ValueKind::folder)
      text += fmt::format("complete -c {} -n '{}' -a '(__fish_complete_directories)'\n", program, condition);
    if (command.table != nullptr) text += fish_options(*command.table, program, condition);
  }
  return text;
}

}  // namespace ddp::cli
