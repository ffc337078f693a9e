#include "cli/option_table.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <stdexcept>

#include <fmt/format.h>

#include "cli/option_values.hpp"

namespace ddp::cli {
namespace {

constexpr std::size_t kHelpColumns = 100;
constexpr std::size_t kNameColumns = 32;

std::string pet_variable(std::string_view name) {
  std::string variable = "PET_";
  for (const char c : name.substr(2)) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

/// Python's bool(int(text)), which torchrun uses; no text is no.
bool parse_pet_flag(const std::string& variable, const std::string& text) {
  const std::string_view number = trimmed(text);
  if (number.empty()) return false;
  long long value = 0;
  const auto [end, status] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (status != std::errc{} || end != number.data() + number.size())
    reject_value(variable, text, "is not a number", "give 1 or 0");
  return value != 0;
}

/// Description beside or below the names, broken at blanks.
std::string option_lines(const OptionEntry& entry) {
  std::string names = entry.short_name.empty() ? "      " : fmt::format("  {}, ", entry.short_name);
  names += entry.name;
  if (!entry.is_flag()) names += entry.value_optional ? fmt::format("[={}]", entry.value_name) : " " + entry.value_name;
  std::string text = fmt::format("{:<{}}", names, kNameColumns);
  if (names.size() + 2 > kNameColumns) text = names + "\n" + std::string(kNameColumns, ' ');
  return text + wrapped(entry.description, kNameColumns) + "\n";
}

std::string pairs(std::string_view heading, const std::vector<TextPair>& list, std::size_t columns) {
  if (list.empty()) return {};
  std::string text = fmt::format("\n{}:\n", heading);
  for (const TextPair& pair : list)
    text += fmt::format("  {:<{}}  {}\n", pair.term, columns, wrapped(pair.meaning, columns + 4));
  return text;
}

}  // namespace

OptionEntry& OptionEntry::torchrun() {
  pet_name = pet_variable(name);
  return torchrun_without_variable();
}

OptionEntry& OptionEntry::torchrun_without_variable() {
  of_torchrun = true;
  return *this;
}

OptionEntry& OptionEntry::completes(ValueKind value_kind) {
  kind = value_kind;
  return *this;
}

OptionEntry& OptionEntry::choices(std::vector<std::string> accepted) {
  words = std::move(accepted);
  return completes(ValueKind::word);
}

OptionEntry& OptionEntry::choices_of(std::string command) {
  words = {std::move(command)};
  return completes(ValueKind::printed);
}

OptionEntry& OptionEntry::optional_value() {
  value_optional = true;
  return *this;
}

OptionEntry& OptionEntry::repeated() {
  repeatable = true;
  return *this;
}

OptionEntry& OptionTable::add(std::string_view names, OptionEntry entry) {
  const auto comma = names.find(',');
  if (comma != std::string_view::npos) entry.short_name = names.substr(0, comma);
  entry.name = comma == std::string_view::npos ? names : names.substr(comma + 1);
  entry.group = group_;
  return entries_.emplace_back(std::move(entry));
}

OptionEntry& OptionTable::add_value(std::string_view names, std::string value_name, std::string description,
                                    OptionEntry::Reader read) {
  OptionEntry entry;
  entry.value_name = std::move(value_name);
  entry.description = std::move(description);
  entry.read = std::move(read);
  return add(names, std::move(entry));
}

OptionEntry& OptionTable::add_flag(std::string_view names, std::string description, bool& target) {
  OptionEntry entry;
  entry.description = std::move(description);
  entry.read = [&target](const std::string& source, const std::string& text) {
    target = source.starts_with("PET_") ? parse_pet_flag(source, text) : true;
  };
  return add(names, std::move(entry));
}

void OptionTable::add_help() {
  OptionEntry entry;
  entry.description = "Print this help and exit.";
  entry.read = [](const std::string&, const std::string&) {};
  add("-h,--help", std::move(entry));
}

std::vector<OptionShape> OptionTable::shapes() const {
  std::vector<OptionShape> shapes;
  for (const OptionEntry& entry : entries_) {
    for (const std::string& name : {entry.name, entry.short_name}) {
      if (name.empty()) continue;
      shapes.push_back({.name = name,
                        .takes_value = !entry.is_flag(),
                        .of_torchrun = entry.of_torchrun,
                        .hidden = entry.group.empty(),
                        .value_optional = entry.value_optional});
    }
  }
  return shapes;
}

std::string OptionTable::help() const {
  std::string text;
  for (const std::string& form : text_.usage) {
    text += fmt::format("{} {} {}\n", &form == &text_.usage.front() ? "Usage:" : "      ", text_.name, form);
  }
  for (const std::string& paragraph : text_.description) text += "\n" + wrapped(paragraph, 0) + "\n";
  std::string group;
  for (const OptionEntry& entry : entries_) {
    if (entry.group.empty()) continue;
    if (entry.group != group) text += fmt::format("\n{}:\n", entry.group);
    group = entry.group;
    text += option_lines(entry);
  }
  if (!text_.remarks.empty()) text += "\n" + text_.remarks;
  std::size_t longest = 0;
  for (const TextPair& pair : text_.exit_statuses) longest = std::max(longest, pair.term.size());
  return text + pairs("Examples", text_.examples, static_cast<std::size_t>(text_.example_columns)) +
         pairs("Signals", text_.signals, kNameColumns) + pairs("Exit status", text_.exit_statuses, longest);
}

void OptionTable::parse(const std::vector<std::string>& options) {
  for (std::size_t i = 0; i < options.size(); ++i) {
    const auto named = [&](const OptionEntry& one) { return one.name == options[i] || one.short_name == options[i]; };
    const auto found = std::find_if(entries_.begin(), entries_.end(), named);
    if (found == entries_.end()) throw std::logic_error(fmt::format("no option {}", options[i]));
    found->results.push_back(found->is_flag() ? "" : options.at(++i));
  }
}

void OptionTable::read_values(const base::Environment& environment) {
  for (OptionEntry& entry : entries_) {
    if (!entry.results.empty()) {
      const auto first = entry.repeatable ? entry.results.begin() : entry.results.end() - 1;
      for (auto each = first; each != entry.results.end(); ++each) entry.read(entry.name, *each);
    } else if (const auto value = entry.pet_name.empty() ? std::nullopt : environment.raw(entry.pet_name)) {
      entry.from_environment = true;
      entry.read(entry.pet_name, *value);
    }
  }
}

std::vector<std::string> OptionTable::read(std::span<const std::string> arguments) {
  SplitArguments split = split_arguments(arguments, shapes(), {.program = text_.name, .interleaved = true});
  parse(split.options);
  if (!given("--help")) read_values(base::Environment{{}});
  return std::move(split.command);
}

void OptionTable::read_options(std::span<const std::string> arguments) {
  const std::vector<std::string> words = read(arguments);
  if (words.empty()) return;
  reject_words(fmt::format("'{}' is not an option", words.front()),
               fmt::format("'{} --help' lists the options", text_.name));
}

const OptionEntry& OptionTable::entry(std::string_view name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& one) { return one.name == name; });
  if (found == entries_.end()) throw std::logic_error(fmt::format("no option {}", name));
  return *found;
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::string result;
  std::size_t column = indent;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    if (!result.empty() && column + 1 + word.size() > kHelpColumns) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!result.empty()) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return result;
}

}  // namespace ddp::cli
