#include "options/argument_split.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/closest_word.hpp"
#include "report/exit_error.hpp"

namespace ddp::launcher {
namespace {

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw ExitError{kExitUsage,
                  {.code = ErrorCode::invalid_argument,
                   .attempted = "reading the command line",
                   .cause = std::move(cause),
                   .native = {},
                   .ranks = {},
                   .hint = std::move(hint)}};
}

/// "--nproc_per_node=4" is the word "--nproc-per-node" with the value "4".
struct TypedOption {
  std::string name;
  std::optional<std::string> value;
};

TypedOption take_apart(const std::string& word) {
  if (!word.starts_with("--")) return {.name = word, .value = {}};
  const auto equals = word.find('=');
  TypedOption typed{.name = word.substr(0, equals), .value = {}};
  if (equals != std::string::npos) typed.value = word.substr(equals + 1);
  std::replace(typed.name.begin(), typed.name.end(), '_', '-');
  return typed;
}

const OptionShape& find_option(const TypedOption& typed, std::span<const OptionShape> known) {
  const auto exact =
      std::find_if(known.begin(), known.end(), [&](const auto& shape) { return shape.name == typed.name; });
  if (exact != known.end()) return *exact;

  std::vector<const OptionShape*> begun;
  std::vector<std::string> names;
  for (const OptionShape& shape : known) {
    if (shape.name.starts_with("--")) names.push_back(shape.name);  // one letter is like any other
    if (typed.name.starts_with("--") && shape.name.starts_with(typed.name)) begun.push_back(&shape);
  }
  if (begun.size() == 1) return *begun.front();
  if (begun.size() > 1) {
    std::vector<std::string_view> choices;
    for (const auto* shape : begun) choices.emplace_back(shape->name);
    reject(fmt::format("option '{}' can mean several options", typed.name),
           fmt::format("write one of {} in full", fmt::join(choices, ", ")));
  }
  const std::string closest = base::closest_word(typed.name, names, std::max<std::size_t>(typed.name.size() / 2, 3));
  reject(fmt::format("unknown option '{}'", typed.name),
         closest.empty() ? "'ddprun --help' lists the options" : fmt::format("did you mean '{}'?", closest));
}

}  // namespace

SplitArguments split_arguments(std::span<const std::string> arguments, std::span<const OptionShape> known) {
  SplitArguments split;
  std::size_t next = 0;
  while (next < arguments.size()) {
    const std::string& word = arguments[next];
    if (word == "--") {
      ++next;
      break;
    }
    if (word.size() < 2 || word.front() != '-') break;
    ++next;
    const TypedOption typed = take_apart(word);
    const OptionShape& option = find_option(typed, known);
    split.options.push_back(option.name);
    if (!option.takes_value) {
      if (typed.value)
        reject(fmt::format("option '{}' takes no value", option.name), "leave out the '=' and what follows");
    } else if (typed.value) {
      split.options.push_back(*typed.value);
    } else if (next < arguments.size()) {
      split.options.push_back(arguments[next++]);
    } else {
      reject(fmt::format("option '{}' needs a value", option.name), "'ddprun --help' shows which");
    }
  }
  split.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(next), arguments.end());
  return split;
}

}  // namespace ddp::launcher
