// CLI11 does the bookkeeping of the command line; torchrun's variables and our help format are added here.
#include "options/option_table.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "options/option_values.hpp"
#include "options/program_text.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kNameColumns = 32;

std::string pet_variable(std::string_view name) {
  std::string variable = "PET_";
  for (const char c : name.substr(2)) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

/// Description beside or below the names, broken at blanks.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return fmt::format("\nUsage: {}\n\n", program_text().usage);
  }
  std::string make_group(std::string group, bool, std::vector<const CLI::Option*> options) const override {
    std::string text = group + ":\n";
    for (const CLI::Option* option : options) text += make_option(option, false);
    return text;
  }
  std::string make_option(const CLI::Option* option, bool) const override {
    const auto& shorts = option->get_snames();
    std::string names = shorts.empty() ? "      " : fmt::format("  -{}, ", shorts.front());
    names += "--" + option->get_lnames().front();
    const std::string value = option->get_type_name();
    if (!value.empty()) names += (value.starts_with("[=") ? "" : " ") + value;
    std::string text = fmt::format("{:<{}}", names, kNameColumns);
    if (names.size() + 2 > kNameColumns) text = names + "\n" + std::string(kNameColumns, ' ');
    return text + wrapped(option->get_description(), kNameColumns) + "\n";
  }
};

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

OptionEntry& OptionEntry::optional_value() {
  value_optional = true;
  option->type_name(fmt::format("[={}]", value_name));
  return *this;
}

OptionTable::OptionTable() : app_(std::make_unique<CLI::App>(wrapped(program_text().description, 0), "ddprun")) {
  app_->formatter(std::make_shared<HelpFormatter>());
  app_->set_help_flag();  // removes CLI11's: ours is an option like any other
}

OptionTable::~OptionTable() = default;

void OptionTable::begin_group(std::string heading) { group_ = std::move(heading); }

OptionEntry& OptionTable::add(std::string_view names, OptionEntry entry) {
  const auto comma = names.find(',');
  if (comma != std::string_view::npos) entry.short_name = names.substr(0, comma);
  entry.name = comma == std::string_view::npos ? names : names.substr(comma + 1);
  entry.group = group_;
  entry.option->group(group_);
  return entries_.emplace_back(std::move(entry));
}

OptionEntry& OptionTable::add_value(std::string_view names, std::string value_name, std::string description,
                                    OptionEntry::Reader read) {
  OptionEntry entry;
  entry.option = app_->add_option(
      std::string(names), [](const CLI::results_t&) { return true; }, description);
  entry.option->type_name(value_name)->take_last();
  entry.value_name = std::move(value_name);
  entry.description = std::move(description);
  entry.read = std::move(read);
  return add(names, std::move(entry));
}

OptionEntry& OptionTable::add_flag(std::string_view names, std::string description, bool& target) {
  OptionEntry entry;
  entry.option = app_->add_flag(std::string(names), std::as_const(description));
  entry.description = std::move(description);
  entry.read = [&target](const std::string& source, const std::string& text) {
    target = source.starts_with("PET_") ? parse_pet_flag(source, text) : true;
  };
  return add(names, std::move(entry));
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
  std::string text = app_->help();
  text.erase(text.find_last_not_of('\n') + 1);
  return text + "\n";
}

void OptionTable::parse(std::vector<std::string> options) {
  std::reverse(options.begin(), options.end());  // CLI11 takes its arguments from the back
  try {
    app_->parse(std::move(options));
  } catch (const CLI::ParseError& error) {
    throw ExitError{kExitUsage,
                    {.code = ErrorCode::invalid_argument,
                     .attempted = "reading the command line",
                     .cause = error.what(),
                     .native = error.get_name(),
                     .hint = "'ddprun --help' lists the options"}};
  }
}

void OptionTable::read_values(const base::Environment& environment) {
  for (OptionEntry& entry : entries_) {
    if (entry.option->count() > 0) {
      entry.read(entry.name, entry.option->results().back());
    } else if (const auto value = entry.pet_name.empty() ? std::nullopt : environment.raw(entry.pet_name)) {
      entry.from_environment = true;
      entry.read(entry.pet_name, *value);
    }
  }
}

bool OptionTable::given(std::string_view name) const { return entry(name).option->count() > 0; }

bool OptionTable::said(std::string_view name) const { return given(name) || entry(name).from_environment; }

const OptionEntry& OptionTable::entry(std::string_view name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& one) { return one.name == name; });
  if (found == entries_.end()) throw std::logic_error(fmt::format("no option {}", name));
  return *found;
}

}  // namespace ddp::launcher
